// Light or dark: the system's choice, until somebody presses the button.

const button = document.getElementById("theme"), root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function draw() {
  button.setAttribute("aria-pressed", isDark());
}

button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("unmask-theme", root.dataset.theme);
  draw();
});
dark.addEventListener("change", draw);

const kept = localStorage.getItem("unmask-theme");
if (kept) root.dataset.theme = kept;
draw();
