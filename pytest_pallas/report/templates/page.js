"use strict";
(() => {
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);
  root.classList.add("scripted");

  // The theme: as the system's, unless the reader has chosen. A file opened from disk may keep none.
  const theme = find("theme");
  const dressed = (name) => { if (name) root.dataset.theme = name; else delete root.dataset.theme; };
  try { theme.value = localStorage.getItem("pallas-theme") || ""; } catch { theme.value = ""; }
  dressed(theme.value);
  theme.addEventListener("change", () => {
    dressed(theme.value);
    try { localStorage.setItem("pallas-theme", theme.value); } catch { /* forgotten, then */ }
  });

  const say = (words) => { find("said").textContent = words; };

  // Copying: with the clipboard where a page from disk may use it, else by a selection.
  const copied = async (text, code) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      return document.execCommand("copy");
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    const done = await copied(code.textContent, code);
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    say(done ? "The command was copied" : "The command is selected; copy it with Ctrl+C");
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  // A link to a kernel, or to its mutants, opens it.
  const opened = (hash) => {
    const kernel = /^#(kernel|mutants)-/.test(hash) && find(hash.slice(1));
    if (!kernel || kernel.tagName !== "DETAILS") return;
    kernel.hidden = false;
    kernel.open = true;
    const summary = kernel.querySelector("summary");
    kernel.scrollIntoView({ block: "start" });
    summary.focus({ preventScroll: true });
  };
  addEventListener("hashchange", () => opened(location.hash));
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#kernel-"], a[href^="#mutants-"]');
    if (link && link.getAttribute("href") === location.hash) opened(location.hash);
  });
  opened(location.hash);

  // Printed are the failures and the mutants that survived, all of them.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll(
      'details.kernel:is([data-state="failed"], [data-state="survived"]):not([open])')];
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of closed) each.open = false; });

  const matrix = find("matrix");
  if (!matrix) return;
  const body = matrix.tBodies[0];
  const rows = [...body.rows];
  const details = new Map(rows.map((row) => [row, find(row.dataset.kernel)]));

  find("open-failed").addEventListener("click", () => {
    for (const each of document.querySelectorAll('details.kernel[data-state="failed"]')) each.open = true;
  });
  find("close-all").addEventListener("click", () => {
    for (const each of document.querySelectorAll("#details details.kernel[open]")) each.open = false;
  });

  const search = find("search"), family = find("family"), backend = find("backend");
  const failed = find("only-failed"), shown = find("shown");
  let column = "";
  const showColumn = () => {
    if (column === backend.value) return;
    column = backend.value;
    for (const cell of matrix.querySelectorAll("[data-backend]")) {
      cell.hidden = column !== "" && cell.dataset.backend !== column;
    }
  };
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    showColumn();
    let count = 0;
    for (const row of rows) {
      const state = column === "" ? row.dataset.state
        : row.querySelector(`td[data-backend="${column}"]`).dataset.state;
      const fits = words.every((word) => row.dataset.text.includes(word))
        && (!family.value || row.dataset.family === family.value)
        && (!failed.checked || state === "failed")
        && (column === "" || state !== "none");
      row.hidden = !fits;
      if (details.get(row)) details.get(row).hidden = !fits;
      count += fits;
    }
    shown.value = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} kernels`;
  };
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 80); });
  for (const each of [family, backend, failed]) each.addEventListener("change", filter);
  find("filters").addEventListener("reset", () => setTimeout(filter));
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  // A browser may bring back what was chosen before the page was loaded again.
  filter();

  // Sorting: words from A, everything else from the worst.
  const value = (row, at, key) => {
    const cell = row.cells[at];
    return key === "name" || key === "family" ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.value);
  };
  matrix.tHead.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const head = button.closest("th"), key = button.dataset.key, at = head.cellIndex;
    const words = key === "name" || key === "family";
    const before = head.getAttribute("aria-sort");
    const up = before === "none" ? words : before === "descending";
    for (const each of matrix.tHead.rows[0].cells) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = rows.map((row, place) => [value(row, at, key), place, row]);
    const sign = up ? 1 : -1;
    keyed.sort((a, b) => (a[0] < b[0] ? -sign : a[0] > b[0] ? sign : a[1] - b[1]));
    body.append(...keyed.map((each) => each[2]));
    say(`Sorted by ${button.textContent.trim()}, ${up ? "ascending" : "descending"}`);
  });
})();
