// Three views of one choice: thumbnails of the heads, the matrix on a canvas, the text with lines. Numbers come from the
// sparse list; what is not in it is said to be small, never read off a colour.
const make = (parent, tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
};
const SVG = "http://www.w3.org/2000/svg";
const picture = (base64) => {
  const image = new Image();
  image.src = `data:image/png;base64,${base64}`;
  return image;
};

export default function ({ parentElement, data, setTriggerValue }) {
  const root = parentElement.querySelector(".attention");
  const { tokens, hues } = data;
  const n = tokens.length;
  let head = data.head, drop = data.drop, log = data.log, query = n - 1, key = null, preview = null;
  let zoom = 1, x0 = 0, y0 = 0, drag = null, painted = null, small = null, values = new Map(), byKey = new Map();
  root.replaceChildren();
  const name = (h) => (data.layer === null ? `head ${h}` : `L${data.layer} H${h}`);
  const rgb = (h) => `rgb(${hues[h].join(",")})`;

  const bar = make(root, "div", "bar");
  const title = make(bar, "b");
  const toggle = (text, on, change) => {
    const label = make(bar, "label");
    const box = make(label, "input");
    box.type = "checkbox";
    box.checked = on;
    make(label, "span", "", text);
    box.onchange = () => { change(box.checked); load(); };
  };
  // In the app a switch of the page does it, so that exports and the address follow.
  if (data.page) toggle("drop position 0 and renormalise", drop, (on) => (drop = on));
  toggle("log opacity", log, (on) => (log = on));
  make(bar, "span", "quiet", `colour: 0 to ${data.end}`);

  const thumbs = make(root, "div", "heads");
  thumbs.setAttribute("role", "group");
  thumbs.setAttribute("aria-label", "Heads");
  const buttons = data.thumbs.map((each, h) => {
    const button = make(thumbs, "button", "head");
    button.type = "button";
    button.style.setProperty("--hue", rgb(h));
    const image = button.appendChild(picture(each));
    image.alt = "";
    make(button, "span", "", name(h));
    button.onpointerenter = () => { preview = h; draw(); };
    button.onpointerleave = () => { preview = null; draw(); };
    button.onclick = () => lock(h);
    return { button, image };
  });
  const body = make(root, "div", "body");
  const matrix = make(body, "div", "matrix");
  make(matrix, "div", "axis", "source (looked at) →");
  const canvas = make(matrix, "canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  make(matrix, "div", "axis", "↓ destination (predicts next). Wheel zooms, drag pans, double click resets.");
  const status = make(matrix, "div", "status");
  status.setAttribute("role", "status");
  const text = make(body, "div", "text");
  text.setAttribute("role", "listbox");
  text.setAttribute("aria-label", "Tokens: choose the destination");
  const lines = document.createElementNS(SVG, "svg");
  lines.setAttribute("aria-hidden", "true");
  const chips = tokens.map((label, i) => {
    const chip = make(text, "span", "chip", label);
    chip.setAttribute("role", "option");
    chip.dataset.pos = i;
    chip.tabIndex = -1;
    return chip;
  });
  text.appendChild(lines);

  const part = () => data.heads[head]?.[drop ? "dropped" : "full"];
  const load = () => {
    const now = part();
    values = new Map(); byKey = new Map(); painted = small = null;
    (now?.q ?? []).forEach((q, i) => {
      if (!values.has(q)) values.set(q, new Map());
      values.get(q).set(now.k[i], now.v[i]);
      if (!byKey.has(now.k[i])) byKey.set(now.k[i], []);
      byKey.get(now.k[i]).push([q, now.v[i]]);
    });
    if (now) {
      const image = picture(now.png);
      image.onload = () => { if (part() === now) { painted = remap(image); small = shrink(painted, 512); draw(); } };
    }
    buttons.forEach(({ button }, h) => button.setAttribute("aria-pressed", String(h === head)));
    title.textContent = `Attention, ${name(head)}`;
    chips.forEach((chip, i) => {
      const most = now?.row_max[i] ?? null;
      chip.style.background = `color-mix(in srgb, ${rgb(head)} ${(45 * Math.min(1, (most ?? 0) / data.end)).toFixed(1)}%, transparent)`;
    });
    draw(); choose(query);
  };
  // Shrinking by an average would let a thin line fade: each pixel of the small picture has the largest value under it.
  const shrink = (off, size) => {
    const n0 = off.width;
    if (n0 <= size) return off;
    const from = off.getContext("2d").getImageData(0, 0, n0, n0).data;
    const small = document.createElement("canvas");
    small.width = small.height = size;
    const pen = small.getContext("2d");
    const out = pen.createImageData(size, size);
    const [r, g, b] = hues[head];
    for (let i = 0; i < size * size; i++) out.data.set([r, g, b, 0], 4 * i);
    for (let y = 0; y < n0; y++) {
      const row = Math.floor((y * size) / n0) * size;
      for (let x = 0; x < n0; x++) {
        const at = 4 * (row + Math.floor((x * size) / n0)) + 3;
        const a = from[4 * (y * n0 + x) + 3];
        if (a > out.data[at]) out.data[at] = a;
      }
    }
    pen.putImageData(out, 0, 0);
    return small;
  };
  // The PNG's opacity is the value; the log view spreads 1/255 .. 1 evenly.
  const remap = (image) => {
    const off = document.createElement("canvas");
    off.width = image.width; off.height = image.height;
    const pen = off.getContext("2d", { willReadFrequently: true });
    pen.drawImage(image, 0, 0);
    if (log) {
      const pixels = pen.getImageData(0, 0, off.width, off.height);
      const [r, g, b] = hues[head];
      for (let i = 0; i < pixels.data.length; i += 4) {
        const a = pixels.data[i + 3];
        if (a) pixels.data.set([r, g, b, Math.round((255 * (Math.log(a) + 0.3)) / (Math.log(255) + 0.3))], i);
      }
      pen.putImageData(pixels, 0, 0);
    }
    return off;
  };
  // Room for the names of the tokens, where they can be read at all.
  const gutter = () => (n * 13 <= canvas.clientWidth - 78 || zoom > 1 ? 78 : 0);
  const draw = () => {
    const ratio = window.devicePixelRatio || 1;
    const side = Math.max(1, canvas.clientWidth);
    if (canvas.width !== Math.round(side * ratio)) canvas.width = canvas.height = Math.round(side * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, side, side);
    const gap = gutter(), cell = ((side - gap) / n) * zoom;
    const at = (i, start) => gap + (i - start) * cell;
    pen.save();
    pen.beginPath();
    pen.rect(gap, gap, side - gap, side - gap);
    pen.clip();
    if (data.causal) {
      pen.fillStyle = "rgba(128,136,148,.22)";
      pen.beginPath();
      for (let q = Math.floor(y0); q < Math.min(n, y0 + n / zoom + 1); q++) pen.rect(at(q + 1, x0), at(q, y0), at(n, x0) - at(q + 1, x0), cell);
      pen.fill();
    }
    const near = cell * ratio < 1 && zoom * side <= 1024 ? small : painted;
    const shown = preview !== null && preview !== head ? buttons[preview].image : near ?? (part() ? null : buttons[head].image);
    if (shown?.width) {
      pen.imageSmoothingEnabled = false;
      pen.drawImage(shown, at(0, x0), at(0, y0), cell * n, cell * n);
    }
    const ink = getComputedStyle(root).color;
    if (query !== null) {
      pen.strokeStyle = ink; pen.globalAlpha = 0.55;
      pen.strokeRect(gap, at(query, y0), side, cell);
      if (key !== null) pen.strokeRect(at(key, x0), gap, cell, side);
      pen.globalAlpha = 1;
    }
    pen.restore();
    if (cell >= 13 && gap) {
      pen.fillStyle = ink; pen.font = "11px monospace";
      for (let i = 0; i < n; i++) {
        const name = [...tokens[i]].slice(0, 10).join(""), y = at(i, y0) + cell / 2, x = at(i, x0) + cell / 2;
        pen.textAlign = "right";
        if (y > gap) pen.fillText(name, gap - 5, y + 4, gap - 8);
        if (x <= gap) continue;
        pen.save();
        pen.translate(x + 4, gap - 5);
        pen.rotate(-Math.PI / 2);
        pen.textAlign = "left";
        pen.fillText(name, 0, 0, gap - 8);
        pen.restore();
      }
      pen.textAlign = "left";
    }
  };
  const value = (q, k) => {
    if (data.causal && k > q) return "masked";
    if (drop && k === 0) return "dropped";
    if (!part()) return "not in this page: save it with this head chosen";
    const found = values.get(q)?.get(k);
    if (found !== undefined) return String(Number(found.toPrecision(3)));
    const sent = values.get(q);
    // A full row of top values hides others that may be above the threshold, but none above its least.
    return sent && sent.size >= data.top_k ? `at most ${Number(Math.min(...sent.values()).toPrecision(3))}` : `below ${data.threshold}`;
  };
  const tell = () => {
    status.textContent = key === null ? `${query}: ${tokens[query]}` : `${query}: ${tokens[query]} looks at ${key}: ${tokens[key]}: ${value(query, key)}`;
  };
  const line = (from, to, strength, className) => {
    const a = chips[from], b = chips[to], path = document.createElementNS(SVG, "path");
    const ax = a.offsetLeft + a.offsetWidth / 2, bx = b.offsetLeft + b.offsetWidth / 2, ay = a.offsetTop, by = b.offsetTop;
    path.setAttribute("d", `M${ax},${ay} Q${(ax + bx) / 2},${Math.min(ay, by) - 22} ${bx},${by}`);
    path.setAttribute("class", className);
    path.style.strokeOpacity = Math.min(1, 0.25 + strength / data.end);
    lines.appendChild(path);
  };
  const choose = (q) => {
    query = q;
    lines.replaceChildren();
    lines.setAttribute("height", text.scrollHeight);
    chips.forEach((chip, i) => { chip.setAttribute("aria-selected", String(i === q)); chip.tabIndex = i === q ? 0 : -1; });
    (byKey.get(q) ?? []).slice(0, 40).forEach(([other, v]) => other !== q && line(other, q, v, "from"));
    values.get(q)?.forEach((v, k) => k !== q && line(q, k, v, "to"));
    tell(); draw();
  };
  const lock = (h) => {
    head = h; preview = null;
    load();
    if (!data.page) setTriggerValue("pick", { head, query, key: key ?? query });
  };
  const cellOf = (event) => {
    const box = canvas.getBoundingClientRect(), gap = gutter(), size = (box.width - gap) / n * zoom;
    const k = Math.floor((event.clientX - box.left - gap) / size + x0), q = Math.floor((event.clientY - box.top - gap) / size + y0);
    if (event.clientX - box.left < gap || event.clientY - box.top < gap) return null;
    return k >= 0 && q >= 0 && k < n && q < n ? [q, k] : null;
  };
  const keep = () => { const room = n - n / zoom; x0 = Math.min(room, Math.max(0, x0)); y0 = Math.min(room, Math.max(0, y0)); };
  canvas.onpointerdown = (event) => { drag = { x: event.clientX, y: event.clientY, x0, y0, moved: false }; canvas.setPointerCapture(event.pointerId); };
  canvas.onpointermove = (event) => {
    if (drag) {
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y, size = (canvas.clientWidth - gutter()) / n * zoom;
      drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
      if (drag.moved) { x0 = drag.x0 - dx / size; y0 = drag.y0 - dy / size; keep(); draw(); }
      return;
    }
    const found = cellOf(event);
    if (found && (found[0] !== query || found[1] !== key)) { key = found[1]; choose(found[0]); }
  };
  canvas.onpointerup = (event) => {
    const found = cellOf(event), clicked = drag && !drag.moved;
    drag = null;
    if (clicked && found) setTriggerValue("pick", { head, query: found[0], key: found[1] });
  };
  canvas.onpointercancel = () => (drag = null);
  canvas.ondblclick = () => { zoom = 1; x0 = y0 = 0; draw(); };
  canvas.onwheel = (event) => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect(), gap = gutter();
    const px = Math.max(0, (event.clientX - box.left - gap) / (box.width - gap)), py = Math.max(0, (event.clientY - box.top - gap) / (box.height - gap));
    const next = Math.min(Math.max(1, n / 4), Math.max(1, zoom * Math.exp(-event.deltaY / 400)));
    x0 += px * n * (1 / zoom - 1 / next); y0 += py * n * (1 / zoom - 1 / next);
    zoom = next; keep(); draw();
  };
  const chipOf = (event) => event.target.closest?.(".chip");
  text.onpointerover = (event) => { const chip = chipOf(event); if (chip) { key = null; choose(Number(chip.dataset.pos)); } };
  text.onclick = (event) => { const chip = chipOf(event); if (chip) setTriggerValue("pick", { head, query: Number(chip.dataset.pos), key: Number(chip.dataset.pos) }); };
  root.onkeydown = (event) => {
    if (event.target.tagName === "INPUT") return;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) {
      if ((event.key === "Enter" || event.key === " ") && chipOf(event)) setTriggerValue("pick", { head, query, key: key ?? query });
      else return;
    } else if (event.shiftKey) lock((head + step + data.n_heads) % data.n_heads);
    else {
      key = null;
      choose(Math.min(n - 1, Math.max(0, query + step)));
      if (chipOf(event)) chips[query].focus();
    }
    event.preventDefault();
  };
  if (root.watch) root.watch.disconnect();
  root.watch = new ResizeObserver(() => draw());
  root.watch.observe(canvas);
  load();
}
