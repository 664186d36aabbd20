// Light or dark, if somebody chose: before anything is painted. This is no module, as those run later.

const kept = localStorage.getItem("theme");
if (kept) document.documentElement.dataset.theme = kept;
