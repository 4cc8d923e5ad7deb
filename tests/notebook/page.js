// CONTRASTS: for each text of the tables' cells: how much it stands out from the background behind it.
const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const numbers = text => text.match(/[\d.]+/g).map(Number);
const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const behind = node => {
  for (; node; node = node.parentElement) {
    const color = numbers(getComputedStyle(node).backgroundColor);
    if (color.length < 4 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll(".jp-OutputArea table td, .jp-OutputArea table th")]
  .filter(cell => cell.textContent.trim())
  .map(cell => {
    const [a, b] = [light(numbers(getComputedStyle(cell).color)), light(behind(cell))];
    return [cell.textContent, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
// READY: whether the page shows a notebook whose kernel has answered; cells run before that are lost.
const [name, tell] = arguments;
const wait = async () => {
  await jupyterapp.restored;
  const panel = [...jupyterapp.shell.widgets("main")].find(w => w.context?.path === name);
  await panel.context.ready;
  await panel.sessionContext.ready;
  await panel.sessionContext.session.kernel.info;
};
wait().then(() => tell(null), error => tell(String(error)));
// LANGUAGES: the language that each code cell's editor highlights, as CodeMirror itself tells.
return [...document.querySelectorAll(".jp-CodeCell .cm-content")].map(node => node.dataset.language);
