// What pages do in the hand where a browser runs scripts. Every page is whole without: this only adds.
// Names on pages come from strangers: they are read and written as text, never as markup.
"use strict";

/** Return an element with attributes; children are elements, or words, which stay text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Tables: a head sorts its column, words filter the rows.

/** Fewer rows are read at a glance; those of a filter are more than a phone shows. */
const SORTED_FROM = 3;
const FILTERED_FROM = 12;

/** Units that one column mixes, in one of them (app/base/figures.py). */
const UNITS = { us: 1e-6, ms: 1e-3, s: 1, min: 60 };
const NUMBER = /^([+-]?[\d,]*\.?\d+)(?:%|\s+(\S+))?(?=\s|$)/;
const collator = new Intl.Collator("en", { numeric: true });

/** Return the number that a cell begins with, in the smallest common unit, or null: dates and ranges are words. */
function numberOf(text) {
  const found = NUMBER.exec(text);
  return found && Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1);
}

/** Return the rows by a column: by number where most cells have one; cells without stand last either way. */
function sorted(rows, column, sign) {
  const cells = rows.map((row) => ({ row, text: row.cells[column].textContent.trim() }));
  for (const cell of cells) cell.number = numberOf(cell.text);
  const filled = cells.filter((cell) => cell.text).length;
  const isNumeric = cells.filter((cell) => cell.number !== null).length * 2 > filled;
  const isLast = (cell) => (isNumeric ? cell.number === null : !cell.text);
  const order = (a, b) => (isNumeric ? a.number - b.number : collator.compare(a.text, b.text));
  cells.sort((a, b) => isLast(a) - isLast(b) || (isLast(a) ? 0 : sign * order(a, b)));
  return cells.map((cell) => cell.row);
}

/** Heads become buttons: upwards, downwards, as it was. */
function addSorting(table, rows) {
  const heads = [...table.tHead.rows[0].cells];
  for (const head of heads.filter((each) => each.textContent.trim())) {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: "" }[head.getAttribute("aria-sort")] ?? "ascending";
      for (const each of heads) each.removeAttribute("aria-sort");
      if (next) head.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      table.tBodies[0].append(...(next ? sorted(rows, head.cellIndex, sign) : rows));
    });
  }
}

/** A box above the table leaves the rows that have all of its words. */
function addFilter(table, rows) {
  const frame = table.closest(".scroll");
  const input = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const count = make("output");
  const name = `Filter: ${frame.getAttribute("aria-label")}`;
  frame.before(make("div", { class: "tools", role: "search", "aria-label": name }, make("label", {}, "Filter ", input), count));
  const where = document.querySelector("a[rel=next]") ? " of this page" : "";
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows${where}`;
  };
  input.addEventListener("input", filter);
  filter();
}

function addToTables() {
  for (const table of document.querySelectorAll("table:not(.still)")) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length >= SORTED_FROM) addSorting(table, rows);
    if (rows.length >= FILTERED_FROM) addFilter(table, rows);
  }
}

// Commands and files: a button copies them, where the browser lets pages (over TLS, or of this machine).

function addCopying() {
  for (const text of navigator.clipboard ? document.querySelectorAll("pre") : []) {
    const name = `Copy: ${text.getAttribute("aria-label")}`;
    const button = make("button", { type: "button", "aria-label": name }, "Copy");
    const said = make("output", { "aria-live": "polite" });
    text.before(make("div", { class: "tools" }, button, said));
    button.addEventListener("click", async () => {
      for (const each of document.querySelectorAll(".tools > output[aria-live]")) each.textContent = "";
      try {
        await navigator.clipboard.writeText(text.textContent);
        said.textContent = "copied";
      } catch {
        said.textContent = "not copied: the browser refuses; mark the text instead";
      }
    });
  }
}

// The page of a job: its stream in the place of the browser's asking again, and how best and bound close in.

/** Return a shape of a drawing. */
function shape(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Draw best and bound since the page was opened, each as high as it is between the extremes of both. */
function drawCourse(figure, points) {
  const values = points.flatMap((each) => [each.best, each.bound]).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const last = points.at(-1).at;
  const y = (value) => (high > low ? 5 + (90 * (high - value)) / (high - low) : 50);
  const x = (at) => (100 * at) / last;
  const svg = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": "Best and bound" });
  for (const name of ["best", "bound"]) {
    const steps = points.filter((each) => each[name] !== null).map((each) => [x(each.at), y(each[name])]);
    // A value holds until the next one comes.
    const line = steps.flatMap(([at, height], step) => (step ? [[at, steps[step - 1][1]], [at, height]] : [[at, height]]));
    svg.append(shape("polyline", { class: name, points: line.map((each) => each.join()).join(" ") }));
  }
  const range = `from ${low.toPrecision(4)} to ${high.toPrecision(4)}, over ${Math.round(last / 1000)} s`;
  figure.replaceChildren(svg, make("figcaption", {}, `Best so far (solid) and proven bound (dashed), ${range}`));
}

function followJob(place) {
  const again = () => setTimeout(() => location.reload(), 1000 * place.dataset.againS);
  const figure = place.appendChild(make("figure", { class: "course" }));
  const points = [];
  let source = null;
  let waiting = null;

  function show(moment) {
    clearTimeout(waiting);
    if (moment.is_final) {
      source.close();
      location.reload();
      return;
    }
    // Whether a worker is alive, the page says.
    if (moment.status === "queued") waiting = again();
    if (!moment.progress) return;
    place.querySelector(".status").textContent = moment.status;
    const { done, total, best, bound } = moment.progress;
    const bar = place.querySelector("progress");
    [bar.max, bar.value] = [Math.max(total, 1), done];
    const note = place.querySelector(".note");
    note.textContent = moment.note;
    note.classList.remove("bad");
    place.querySelector(".figures").replaceChildren(...moment.figures.map((words) => make("p", {}, words)));
    if (best === null && bound === null) return;
    if (!points.length) points.push({ at: 0, best, bound });
    points.push({ at: performance.now(), best, bound });
    drawCourse(figure, points);
  }

  // Browsers keep few connections to a service: tabs that nobody sees hold none.
  function listen() {
    if (document.hidden) source?.close();
    if (document.hidden || (source && source.readyState !== EventSource.CLOSED)) return;
    source = new EventSource(place.dataset.events);
    source.addEventListener("job", (event) => show(JSON.parse(event.data)));
    source.addEventListener("error", ({ target }) => target.readyState === EventSource.CLOSED && again());
  }
  document.addEventListener("visibilitychange", listen);
  listen();
}

// A page that the browser asks for again would lose what its reader sorted and typed.
if (!document.querySelector("meta[http-equiv=refresh]")) addToTables();
addCopying();
for (const place of document.querySelectorAll("[data-events]")) followJob(place);
