// CONTRASTS: the contrast of text and background, for each cell of the tables.
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
// READY: waits until the notebook's kernel has replied; cells that run before that are lost.
const [name, report] = arguments;
const wait = async () => {
  await jupyterapp.restored;
  const panel = [...jupyterapp.shell.widgets("main")].find(w => w.context?.path === name);
  await panel.context.ready;
  await panel.sessionContext.ready;
  await panel.sessionContext.session.kernel.info;
};
wait().then(() => report(null), error => report(String(error)));
// LANGUAGES: the language that CodeMirror highlights in each code cell.
return [...document.querySelectorAll(".jp-CodeCell .cm-content")].map(node => node.dataset.language);
