// A table of the lens's best guesses. Text goes in by textContent only; hover and focus show the numbers of a cell.
const make = (parent, tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
};
const say = (value) => (value === null ? "none" : String(Number(value.toPrecision(3))));

export default function ({ parentElement, data, setTriggerValue }) {
  const root = parentElement.querySelector(".lens");
  root.replaceChildren();
  const { columns, column, low, high } = data;
  make(root, "p", "note", `Colour: ${columns[column].replace("_", " ")}, ${say(low)} to ${say(high)}. ${data.note}`);
  const status = make(root, "div", "status", "Point at a cell, or use the arrow keys.");
  status.setAttribute("role", "status");
  const box = make(root, "div", "box");
  const table = make(box, "table");
  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", "Lens: tokens by layers");
  const first = make(make(table, "thead"), "tr");
  make(first, "th", "", "token").scope = "col";
  data.sites.forEach((site) => (make(first, "th", "", site).scope = "col"));
  const rows = document.createDocumentFragment();
  const cells = data.cells.map((line, i) => {
    const row = make(rows, "tr");
    make(row, "th", "", `${data.pos[i]}: ${data.tokens[i]}`).scope = "row";
    return line.map((cell, j) => {
      const node = make(row, "td", cell ? "" : "none", cell?.top ?? "");
      node.dataset.at = `${i} ${j}`;
      node.tabIndex = -1;
      const value = cell?.values[column] ?? null;
      const part = value === null ? 0 : Math.min(1, Math.max(0, (value - low) / (high - low)));
      node.style.background = `color-mix(in srgb, #2a86dc ${(62 * part).toFixed(1)}%, transparent)`;
      return node;
    });
  });
  make(table, "tbody").appendChild(rows);
  if (cells[0]?.[0]) cells[0][0].tabIndex = 0;
  const placeOf = (event) => event.target.closest?.("td")?.dataset.at.split(" ").map(Number);
  const show = ([i, j]) => {
    const cell = data.cells[i][j];
    const parts = cell ? columns.map((each, c) => `${each.replace("_", " ")} ${say(cell.values[c])}`) : ["not recorded"];
    status.textContent = `${data.pos[i]}: ${data.tokens[i]}, ${data.sites[j]} says ${cell?.top ?? "nothing"}: ${parts.join(", ")}`;
  };
  const tell = (event) => placeOf(event) && show(placeOf(event));
  table.onpointerover = tell;
  table.addEventListener("focusin", tell); // there is no onfocusin
  table.onclick = (event) => {
    const place = placeOf(event);
    if (place) setTriggerValue("pick", { pos: data.pos[place[0]], site: data.sites[place[1]] });
  };
  table.onkeydown = (event) => {
    const place = placeOf(event);
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!place || !step) return;
    const next = cells[place[0] + step[0]]?.[place[1] + step[1]];
    if (next) {
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    event.preventDefault();
  };
}
