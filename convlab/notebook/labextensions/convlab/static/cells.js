// An extension of JupyterLab and Jupyter Notebook 7: it shows a cell that begins with %%kernel as C++.
//
// This file has the form of a bundler's output, a container with init and get, but you can read it.
// It imports nothing, because JupyterLab passes it all objects that it needs.
(window._JUPYTERLAB = window._JUPYTERLAB || {}).convlab = (() => {
  const CPP = "text/x-c++src";
  const KERNEL = /^\s*%%kernel\b/;

  // When a notebook gets its kernel's language, it sets that language in all cells. So check each
  // cell again after that, and after each edit.
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
