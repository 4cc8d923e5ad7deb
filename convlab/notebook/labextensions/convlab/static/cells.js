// JupyterLab, and Jupyter Notebook 7: a cell that begins with %%kernel is shown as C++.
//
// It is what a bundler would make, a container with init and get, but short enough to be read as
// it is; it imports nothing, since JupyterLab hands it all that it needs.
(window._JUPYTERLAB = window._JUPYTERLAB || {}).convlab = (() => {
  const CPP = "text/x-c++src";
  const KERNEL = /^\s*%%kernel\b/;

  // A notebook gives all its cells its kernel's language, whenever it learns that; so each cell is
  // looked at again after that, and after each edit.
  const watch = notebook => {
    const seen = new WeakSet();

    const show = cell => {
      if (KERNEL.test(cell.sharedModel.getSource())) {
        cell.mimeType = CPP;
      } else if (cell.mimeType === CPP) {
        cell.mimeType = notebook.codeMimetype;
      }
    };
    const look = () => {
      for (const cell of notebook.model?.cells ?? []) {
        if (cell.type !== "code" || seen.has(cell)) continue;
        seen.add(cell);
        cell.mimeTypeChanged.connect(show);
        cell.sharedModel.changed.connect(() => show(cell));
        show(cell);
      }
    };
    notebook.modelContentChanged.connect(look);
    notebook.modelChanged.connect(look);
    look();
  };

  const plugin = {
    id: "convlab:cells",
    description: "Shows a cell that begins with %%kernel as C++.",
    autoStart: true,
    activate: app => {
      const createNew = panel => void watch(panel.content);
      app.docRegistry.addWidgetExtension("Notebook", { createNew });
    },
  };

  return { init: () => {}, get: async () => () => plugin };
})();
