// Draws the figures in the colours of the theme, sorts and filters, moves the window of timelines.
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const views = new Map();
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const MOST = 80; // figures that are drawn at the same time

  // The longest text of a legend decides how many entries fit a row.
  function longest(value) {
    if (Array.isArray(value)) return Math.max(0, ...value.map(longest));
    if (value === null || typeof value !== "object") return 0;
    const own = ["color", "shape", "strokeDash"].map((name) => value.encoding?.[name]).filter((each) => each?.legend !== null);
    const texts = own.flatMap((each) => each?.scale?.domain ?? []).map((text) => String(text).length);
    return Math.max(0, ...texts, ...["layer", "hconcat", "vconcat"].map((name) => longest(value[name] ?? [])));
  }

  function theme(box, spec) {
    const [soft, line, font] = ["--soft", "--line", "--font"].map(colour);
    const ink = "currentColor"; // of the page, so that what was drawn for the dark prints dark on white
    const series = [1, 2, 3, 4, 5, 6, 7].map((n) => colour(`--series-${n}`));
    const text = { labelColor: soft, titleColor: ink, labelFont: font, titleFont: font };
    const width = Math.max(200, box.clientWidth - 60);
    const columns = Math.max(1, Math.min(6, Math.floor(width / (longest(spec) * 7 + 36))));
    return {
      background: "transparent",
      padding: { left: 5, top: 5, right: 9, bottom: 5 }, // browsers draw a number wider than Vega measures it
      font,
      view: { stroke: null },
      range: { category: series },
      axis: {
        ...text, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500,
        domainColor: soft, tickColor: soft, gridColor: line,
      },
      axisX: { labelOverlap: "parity", labelSeparation: 4, tickCount: { signal: "max(6, ceil(width / 70))" } },
      legend: { ...text, labelFontSize: 12, titleFontSize: 12, orient: "bottom", direction: "horizontal", columns, labelLimit: width, symbolStrokeWidth: 2, layout: { bottom: { anchor: "start", direction: "vertical" } } },
      line: { color: ink }, rule: { color: ink }, tick: { color: ink },
      bar: { color: series[0] }, point: { color: series[0] },
      text: { color: ink, font, fontSize: 12 },
    };
  }

  function release(box) {
    const id = box.dataset.figure;
    if (!views.has(id)) return;
    box.style.minHeight = `${box.offsetHeight}px`; // the page must not move
    views.get(id).finalize();
    views.delete(id);
    box.replaceChildren();
  }

  async function draw(box) {
    const id = box.dataset.figure;
    views.get(id)?.finalize();
    views.delete(id);
    try {
      const options = { ast: true, renderer: "svg", actions: false, config: theme(box, specs[id]), defaultStyle: false, tooltip: { disableDefaultStyle: true } };
      const result = await vegaEmbed(box, specs[id], options);
      box.style.minHeight = "";
      views.set(id, result.view);
      if (box.closest("figure").dataset.zooms !== undefined) moves(box, result.view);
    } catch (error) {
      box.textContent = `This figure could not be drawn: ${error.message}`;
      console.error(`${id}: ${error.message}`);
    }
  }

  // A figure inside a closed section has no size, and is drawn once the section opens.
  const boxes = [...document.querySelectorAll("[data-figure]")];
  const isShown = (box) => box.offsetParent !== null && !box.closest("details:not([open])");
  function distance(box) {
    const { top, bottom } = box.getBoundingClientRect();
    return Math.max(0, -bottom, top - window.innerHeight);
  }

  // One at a time, the nearest to the window first, in turn with the page's own work, so that reading can begin at once.
  let round = 0;
  async function drawShown() {
    const mine = ++round;
    document.documentElement.dataset.figures = "drawing";
    boxes.filter((box) => !isShown(box)).forEach(release);
    const shown = boxes.filter(isShown).map((box) => [distance(box), box]).sort(([a], [b]) => a - b).map(([, box]) => box);
    shown.slice(MOST).forEach(release);
    for (const box of shown.slice(0, MOST)) {
      if (mine !== round) return;
      if (views.has(box.dataset.figure)) continue;
      await draw(box);
      await new Promise((resume) => setTimeout(resume, 0));
    }
    if (mine === round) document.documentElement.dataset.figures = "drawn";
  }
  function drawAgain() {
    boxes.forEach(release);
    drawShown();
  }

  const home = new Map();
  function window_(view) { return [view.signal("t0"), view.signal("t1")]; }
  function show(view, t0, t1) { view.signal("t0", t0).signal("t1", t1).runAsync(); }
  function zoom(view, factor, at = 0.5) {
    const [t0, t1] = window_(view);
    const fixed = t0 + at * (t1 - t0);
    show(view, fixed - (fixed - t0) * factor, fixed + (t1 - fixed) * factor);
  }
  function pan(view, share) {
    const [t0, t1] = window_(view);
    show(view, t0 + share * (t1 - t0), t1 + share * (t1 - t0));
  }
  const actions = {
    in: (view) => zoom(view, 0.5), out: (view) => zoom(view, 2),
    left: (view) => pan(view, -0.25), right: (view) => pan(view, 0.25),
    reset: (view, id) => show(view, ...home.get(id)),
  };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "reset" };

  // Of a drawn timeline: the mouse. Buttons and keys are bound once, below.
  function moves(box, view) {
    const id = box.dataset.figure;
    if (home.has(id)) show(view, ...(home.get(`${id} now`) ?? home.get(id)));
    else home.set(id, window_(view));
    const svg = box.querySelector("svg");
    const remember = () => home.set(`${id} now`, window_(view));
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(view, event.deltaY > 0 ? 1.25 : 0.8, (event.offsetX - view.origin()[0]) / view.width());
      remember();
    }, { passive: false });
    let from = null;
    svg.addEventListener("pointerdown", (event) => { from = event.clientX; svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointermove", (event) => {
      if (from === null) return;
      pan(view, (from - event.clientX) / view.width());
      from = event.clientX;
    });
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { from = null; remember(); });
  }
  function act(figure, name) {
    const id = figure.querySelector("[data-figure]").dataset.figure;
    const view = views.get(id);
    if (!view) return;
    actions[name](view, id);
    home.set(`${id} now`, window_(view));
  }
  for (const figure of document.querySelectorAll("figure[data-zooms]")) {
    for (const button of figure.querySelectorAll("[data-move]")) button.addEventListener("click", () => act(figure, button.dataset.move));
    figure.addEventListener("keydown", (event) => {
      const name = keys[event.key];
      if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act(figure, name);
    });
  }

  // Numbers by value, largest first at the first press; texts by letter; what is no number comes last either way.
  function sort(button) {
    const head = button.closest("th");
    const table = head.closest("table");
    const column = [...head.parentNode.children].indexOf(head);
    const isText = head.dataset.text !== undefined;
    const was = head.getAttribute("aria-sort");
    const now = was === "none" ? (isText ? "ascending" : "descending") : was === "ascending" ? "descending" : "ascending";
    for (const each of head.parentNode.children) each.setAttribute("aria-sort", each === head ? now : "none");
    const sign = now === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.children[column];
      return isText ? cell.textContent.trim() : cell.dataset.number === undefined ? null : Number(cell.dataset.number);
    };
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (isText ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
    });
    body.append(...rows.map(([, row]) => row));
    document.getElementById("told").textContent = `Sorted by ${button.textContent.trim()}, ${now}.`;
  }
  for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sort(button));

  for (const button of document.querySelectorAll(".columns")) {
    const more = button.textContent;
    button.addEventListener("click", () => {
      const isFew = button.parentNode.classList.toggle("few");
      button.setAttribute("aria-pressed", String(!isFew));
      button.textContent = isFew ? more : button.dataset.less;
    });
  }

  // A section is found by all words that were typed, in its title, settings and modes.
  const works = [...document.querySelectorAll("details.work[data-words]")];
  const inputs = ["find", "workload", "dtype"].map((id) => document.getElementById(id));
  const [find, workload, dtype] = inputs;
  function filter() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const work of works) {
      const chosen = [[workload, "workload"], [dtype, "dtype"]].every(([input, name]) => !input?.value || input.value === work.dataset[name]);
      const isFound = chosen && words.every((word) => work.dataset.words.includes(word));
      for (const each of [work, ...document.querySelectorAll(`[data-work="${work.id}"]`)]) each.hidden = !isFound;
      found += isFound;
    }
    document.getElementById("found").textContent = `${found} of ${works.length} streams`;
    drawShown();
  }
  for (const input of inputs) input?.addEventListener("input", filter);
  const open = (isOpen) => works.filter((work) => !work.hidden).forEach((work) => { work.open = isOpen; });
  document.getElementById("open-all")?.addEventListener("click", () => open(true));
  document.getElementById("close-all")?.addEventListener("click", () => open(false));

  // A link to a closed section opens it.
  function follow() {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (target?.matches("details.work")) target.open = true;
    target?.scrollIntoView();
  }
  window.addEventListener("hashchange", follow);

  let waiting = 0;
  function soon() {
    clearTimeout(waiting);
    waiting = setTimeout(drawShown, 120);
  }
  document.addEventListener("toggle", soon, true);
  if (boxes.length > MOST) document.addEventListener("scroll", soon, { passive: true });
  dark.addEventListener("change", drawAgain);
  follow();
  drawShown();
})();
