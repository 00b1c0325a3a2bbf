// Draws the chips. Text goes in by textContent only. Hover, focus and the choice of the track stay here; a click (or
// Enter, or Space) on a chip goes to Python as the trigger "pick", with Shift as "second". Listeners sit on the list, and a
// chip gets its label for screen readers when it is reached, so that 2,048 chips stay quick.

const make = (parent, tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
};

const say = (value, track) =>
  value === null ? "none" : `${Number(value.toPrecision(3))}${track.unit ? " " + track.unit : ""}`;

const share = (value, low, high) => (high === low ? 0 : Math.min(1, Math.max(0, (value - low) / (high - low))));

const BLUE = "#2a86dc", ORANGE = "#d98a00";
const colour = (value, track) => {
  if (value === null) return "transparent";
  const middle = track.mid ?? null;
  const below = middle !== null && value < middle;
  const part = below ? share(-value, -middle, -track.low) : share(value, middle ?? track.low, track.high);
  const percent = (below ? 50 : 62) * part;
  return `color-mix(in srgb, ${below ? ORANGE : BLUE} ${percent.toFixed(1)}%, transparent)`;
};

export default function ({ parentElement, data, setTriggerValue }) {
  const root = parentElement.querySelector(".strip");
  const { tokens, tracks, selected } = data;
  const active = parentElement.activeElement ?? document.activeElement;
  const hadFocus = active?.classList?.contains("chip") && root.contains(active);
  let track = Math.min(Number(root.dataset.track ?? 0), tracks.length - 1);
  root.replaceChildren();

  const bar = make(root, "div", "bar");
  const choices = make(bar, "div", "tracks");
  choices.setAttribute("role", "radiogroup");
  choices.setAttribute("aria-label", "Colour of the tokens");
  const scale = make(bar, "div", "scale");
  const low = make(scale, "span");
  const ramp = make(scale, "i");
  const high = make(scale, "span");

  const list = make(root, "div", "tokens");
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Tokens of the prompt");
  list.setAttribute("aria-orientation", "horizontal");
  const tip = make(root, "div", "tip");
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;

  const pile = document.createDocumentFragment();
  const chips = tokens.map((token, i) => {
    const chip = make(pile, "span", "chip", token.label);
    chip.setAttribute("role", "option");
    chip.setAttribute("aria-selected", String(token.pos === selected));
    chip.tabIndex = token.pos === selected ? 0 : -1;
    chip.dataset.index = i;
    if (token.breaks) make(pile, "br");
    return chip;
  });
  list.appendChild(pile);
  const indexOf = (chip) => Number(chip.dataset.index);
  if (chips.length && !chips.some((chip) => chip.tabIndex === 0)) chips[0].tabIndex = 0;

  const paint = () => {
    const shown = tracks[track];
    scale.hidden = !shown;
    if (!shown) return;
    ramp.classList.toggle("both", (shown.mid ?? null) !== null);
    low.textContent = say(shown.low, { unit: "" });
    high.textContent = say(shown.high, shown);
    buttons.forEach((button, i) => button.setAttribute("aria-checked", String(i === track)));
    chips.forEach((chip, i) => {
      const value = tokens[i].values[track];
      chip.classList.toggle("none", value === null);
      chip.style.background = colour(value, shown);
      chip.removeAttribute("aria-label");
    });
  };
  const buttons = tracks.map((each, i) => {
    const button = make(choices, "button", "", each.title);
    button.type = "button";
    button.setAttribute("role", "radio");
    button.onclick = () => {
      track = i;
      root.dataset.track = i;
      paint();
    };
    return button;
  });
  paint();

  const show = (chip) => {
    const token = tokens[indexOf(chip)];
    const parts = tracks.map((each, i) => `${each.title} ${say(token.values[i], each)}`);
    chip.setAttribute("aria-label", [`token ${token.pos}`, token.label, ...parts].join(", "));
    tip.replaceChildren();
    make(tip, "b", "", `${token.pos}: ${token.label}`);
    tracks.forEach((each, i) => {
      const line = make(tip, "span");
      make(line, "span", "", each.title);
      make(line, "span", "", say(token.values[i], each));
    });
    tip.hidden = false;
    const left = Math.min(chip.offsetLeft, root.clientWidth - tip.offsetWidth);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${chip.offsetTop - list.scrollTop + chip.offsetHeight + 6}px`;
  };
  const chipOf = (event) => event.target.closest?.(".chip");
  list.onpointerover = (event) => chipOf(event) && show(chipOf(event));
  list.onpointerleave = () => (tip.hidden = true);
  list.addEventListener("focusin", (event) => chipOf(event) && show(chipOf(event))); // there is no onfocusin
  list.addEventListener("focusout", () => (tip.hidden = true));
  list.onscroll = () => (tip.hidden = true);

  const pick = (chip, second) => setTriggerValue(second ? "second" : "pick", tokens[indexOf(chip)].pos);
  list.onclick = (event) => chipOf(event) && pick(chipOf(event), event.shiftKey);
  list.onkeydown = (event) => {
    const chip = chipOf(event);
    if (!chip) return;
    const at = indexOf(chip);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: chips.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") pick(chip, event.shiftKey);
    else if (event.key === "Escape") tip.hidden = true;
    else if (to !== undefined && chips[to]) {
      chips.forEach((each) => (each.tabIndex = -1));
      chips[to].tabIndex = 0;
      chips[to].focus();
    } else return;
    event.preventDefault();
  };
  if (hadFocus) chips.find((chip) => chip.tabIndex === 0)?.focus();
}
