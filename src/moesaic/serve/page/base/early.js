// Runs before the page is drawn, so that a chosen theme does not flash.
try {
  document.documentElement.dataset.theme = localStorage.getItem("moesaic.theme") ?? "auto";
} catch {
  // The browser keeps nothing for this page.
}
