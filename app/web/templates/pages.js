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
  const svg = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": "Progress" });
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

// Drawings: the words of a mark stand beside the pointer or the focus, and bars are shown larger along their axis.

/** Nothing is shown larger than this share of an axis: beyond, the two decimals of the server's places show. */
const SMALLEST = 1 / 256;
const MARKS = "rect, circle, path, polyline";
const box = make("div", { class: "box", role: "tooltip", hidden: "" });

/** Return the words of a mark, "" without; the browser's own box for them, which comes late, is kept from coming too. */
function wordsOf(mark) {
  const title = [...mark.children].find((each) => each.tagName === "title");
  if (title) {
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  return mark.getAttribute("aria-label") ?? "";
}

function showBox(mark, x, y) {
  box.textContent = mark.matches(MARKS) ? wordsOf(mark) : "";
  box.hidden = !box.textContent;
  box.style.left = `${Math.max(0, Math.min(x + 12, innerWidth - box.offsetWidth - 12))}px`;
  box.style.top = `${y + 16 + box.offsetHeight > innerHeight ? y - box.offsetHeight - 8 : y + 16}px`;
}

/** Marks are read by arrows, from one place in the order of Tab: a drawing has thousands. */
function addWords(svg) {
  wordsOf(svg);
  svg.setAttribute("role", "group");
  const point = (event) => showBox(event.target, event.clientX, event.clientY);
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", (event) => (box.hidden ||= event.pointerType === "mouse"));
  svg.addEventListener("focusout", () => (box.hidden = true));
  svg.addEventListener("focusin", ({ target }) => {
    const mark = target.matches(MARKS) ? target : target.querySelector(MARKS);
    const place = mark.getBoundingClientRect();
    showBox(mark, place.left + place.width / 2, place.bottom - 12);
  });
  // Links are in the order of Tab already.
  const marks = [...svg.querySelectorAll("title")].map((title) => title.parentNode).filter((mark) => mark.matches(MARKS));
  if (svg.querySelector("a") || !marks.length) return;
  marks[0].tabIndex = 0;
  marks[0].setAttribute("role", "img");
  svg.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };
    const from = marks.indexOf(event.target);
    const step = steps[event.key];
    if (!step || from < 0) return;
    const isRow = event.key === "ArrowDown" || event.key === "ArrowUp";
    const next = isRow ? inNextRow(marks, event.target, step) : marks[from + step];
    event.preventDefault();
    event.stopPropagation();
    if (!next) return;
    event.target.removeAttribute("tabindex");
    wordsOf(next);
    next.tabIndex = 0;
    svg.dispatchEvent(new CustomEvent("reach", { detail: next.getBBox() }));
    next.focus();
  });
}

/** Return the nearest mark above or below, in the nearest row that has one. */
function inNextRow(marks, mark, step) {
  const middle = ({ x, y, width, height }) => [x + width / 2, y + height / 2];
  const [x, y] = middle(mark.getBBox());
  const places = marks.map((each) => [each, ...middle(each.getBBox())]).filter((each) => step * (each[2] - y) > 1);
  const nearest = Math.min(...places.map((each) => Math.abs(each[2] - y)));
  const row = places.filter((each) => Math.abs(Math.abs(each[2] - y) - nearest) < 1);
  return row.sort((a, b) => Math.abs(a[1] - x) - Math.abs(b[1] - x))[0]?.[0];
}

/** Show a part of an axis: by buttons, + and -, pinching, the wheel with Ctrl or in focus, dragging; Escape shows all. */
function addAxis(region, svg, axis) {
  const whole = axis.viewBox.baseVal;
  const all = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
  const [start, end] = [Number(axis.dataset.start), Number(axis.dataset.end)];
  const said = make("output");
  let view = { x: all.x, width: all.width };

  function show(x, wanted) {
    const width = Math.min(all.width, Math.max(all.width * SMALLEST, wanted));
    view = { x: Math.min(all.x + all.width - width, Math.max(all.x, x)), width };
    axis.setAttribute("viewBox", `${view.x} ${all.y} ${width} ${all.height}`);
    const at = (place) => (start + ((place - all.x) / all.width) * (end - start)).toPrecision(4);
    said.textContent = width < all.width ? `${at(view.x)} to ${at(view.x + width)} ${axis.dataset.unit}` : "";
    svg.classList.toggle("closer", width < all.width);
  }
  const scale = () => svg.viewBox.baseVal.width / svg.getBoundingClientRect().width;
  const placeOf = (clientX) => {
    const units = (clientX - svg.getBoundingClientRect().left) * scale() - axis.x.baseVal.value;
    return view.x + (units / all.width) * view.width;
  };
  const zoom = (factor, at = view.x + view.width / 2) => show(at - (at - view.x) * factor, view.width * factor);
  const pan = (share) => show(view.x + share * view.width, view.width);

  const ways = [
    ["+", "Larger", () => zoom(1 / 2)],
    ["\u2212", "Smaller", () => zoom(2)],
    ["All", "All", () => show(all.x, all.width)],
  ];
  const buttons = ways.map(([sign, name, way]) => {
    const button = make("button", { type: "button", "aria-label": name }, sign);
    button.addEventListener("click", way);
    return button;
  });
  const name = `Look closely: ${region.getAttribute("aria-label")}`;
  const hint = make("span", { class: "quiet" }, "+ and -, Ctrl and wheel, drag; Escape shows all");
  const tools = make("div", { class: "tools", role: "group", "aria-label": name }, ...buttons, said, hint);
  region.before(tools);
  show(view.x, view.width);

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isCloser = view.width < all.width;
    const keys = { "+": () => zoom(1 / 2), "=": () => zoom(1 / 2), "-": () => zoom(2), Escape: () => show(all.x, all.width) };
    if (isCloser) Object.assign(keys, { ArrowLeft: () => pan(-1 / 4), ArrowRight: () => pan(1 / 4) });
    if (!(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
  }
  for (const each of [tools, region]) each.addEventListener("keydown", press);
  svg.addEventListener("reach", ({ detail }) => {
    if (detail.x < view.x || detail.x > view.x + view.width) show(detail.x + (detail.width - view.width) / 2, view.width);
  });

  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !region.contains(document.activeElement)) return;
    if (event.deltaY >= 0 && view.width >= all.width && !event.ctrlKey) return;
    event.preventDefault();
    zoom(2 ** (Math.max(-100, Math.min(100, event.deltaY)) / 200), placeOf(event.clientX));
  }, { passive: false });

  const fingers = new Map();
  svg.addEventListener("pointerdown", (event) => fingers.set(event.pointerId, event.clientX));
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, (event) => fingers.delete(event.pointerId));
  addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    const before = [...fingers.values()];
    fingers.set(event.pointerId, event.clientX);
    const after = [...fingers.values()];
    if (after.length > 1) {
      const apart = ([a, b]) => Math.max(1, Math.abs(a - b));
      zoom(apart(before) / apart(after), placeOf((after[0] + after[1]) / 2));
    } else {
      show(view.x + ((before[0] - after[0]) * scale() * view.width) / all.width, view.width);
    }
  });
}

function addToDrawings() {
  const hide = () => (box.hidden = true);
  document.body.append(box);
  document.addEventListener("pointerdown", hide, { capture: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  for (const region of document.querySelectorAll(".wide")) {
    const svg = region.querySelector("svg");
    if (!svg) continue;
    addWords(svg);
    const axis = svg.querySelector("svg.axis");
    if (axis) addAxis(region, svg, axis);
  }
}

// A page that the browser asks for again would lose what its reader sorted and typed.
if (!document.querySelector("meta[http-equiv=refresh]")) addToTables();
addCopying();
addToDrawings();
for (const place of document.querySelectorAll("[data-events]")) followJob(place);
