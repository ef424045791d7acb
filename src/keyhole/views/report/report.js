"use strict";
// Draws every chart into its placeholder. Colours are the page's variables, so light and dark need no redraw.
const figures = JSON.parse(document.getElementById("figures").textContent);
const options = {
  actions: false,
  ast: true, // expressions are interpreted: the page's policy forbids eval
  defaultStyle: false,
  renderer: "svg",
  tooltip: { theme: "keyhole", disableDefaultStyle: true },
};
const drawn = [];
for (const place of document.querySelectorAll("[data-figure]")) {
  const figure = figures[place.dataset.figure];
  if (place.clientWidth < 520) figure.config.legend.columns = 1;
  drawn.push(
    vegaEmbed(place, figure, options).catch((error) => {
      place.textContent = `The chart could not be drawn: ${error.message}`;
      throw error;
    }),
  );
}
Promise.all(drawn).then(() => document.documentElement.classList.add("drawn"));
