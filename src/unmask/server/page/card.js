// The card of a token: how likely it was when it was drawn, and what else was likely.

const card = document.getElementById("card");

export function showCard(word, cell, steps) {
  card.replaceChildren(element("strong", spelled(cell.text)), element("span", origin(cell, steps)), ...law(cell));
  card.hidden = false;
  const at = word.getBoundingClientRect(), edge = 8;
  const left = Math.min(at.left, document.documentElement.clientWidth - card.offsetWidth - edge);
  const isAbove = at.bottom + card.offsetHeight + edge > innerHeight && at.top > card.offsetHeight + edge;
  card.style.left = `${Math.max(edge, left)}px`;
  card.style.top = `${isAbove ? at.top - card.offsetHeight - 6 : at.bottom + 6}px`;
}

export function hideCard() {
  card.hidden = true;
}

addEventListener("scroll", hideCard, { passive: true });
addEventListener("keydown", event => event.key === "Escape" && hideCard());

function origin(cell, steps) {
  if (cell.kind === "given") return "given";
  if (cell.kind === "kept") return "kept from an earlier writing";
  return `step ${cell.step} of ${steps}`;
}

// The likeliest tokens and the one that was drawn, wherever it stands among them.
function law(cell) {
  if (cell.probability == null) return [];
  const drawn = { token: cell.token, text: cell.text, probability: cell.probability };
  const others = cell.alternatives.filter(each => each.token !== cell.token);
  const rows = [drawn, ...others].sort((a, b) => b.probability - a.probability);
  const table = document.createElement("ol");
  table.append(...rows.map(each => {
    const row = document.createElement("li");
    row.className = each === drawn ? "drawn" : "";
    row.style.setProperty("--share", each.probability);
    row.append(element("span", spelled(each.text)), element("span", percent(each.probability)));
    return row;
  }));
  return [table];
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

const spelled = text => text.trimStart() || text.replaceAll("\n", "↵").replaceAll(" ", "␣") || "part of a letter";

function percent(share) {
  if (share < 0.001) return "< 0.1%";
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
}
