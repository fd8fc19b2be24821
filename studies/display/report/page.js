"use strict";
// Opens a study when a link leads to it, and draws each plot when it comes near the window: a report of many studies opens
// as fast as one of few. For printing, everything is opened and drawn. Tables are sorted by a click on a column's head, and
// long ones have a field that filters their rows.
(() => {
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };
  const themed = () => {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return {
      "font.color": read("--text"),
      "modebar.bgcolor": read("--panel"),
      "modebar.color": read("--quiet"),
      "modebar.activecolor": read("--text"),
      "hoverlabel.bgcolor": read("--panel"),
      "hoverlabel.bordercolor": read("--line"),
      "hoverlabel.font.color": read("--text"),
    };
  };
  const draw = async (element) => {
    if (element.dataset.state) return;
    element.dataset.state = "drawing";
    try {
      const figure = JSON.parse(document.getElementById(element.dataset.figure).textContent);
      await Plotly.newPlot(element, figure.data, figure.layout, {
        ...config,
        displayModeBar: "zoomable" in element.dataset,
      });
      await Plotly.relayout(element, themed());
      element.dataset.state = "drawn";
    } catch (error) {
      element.dataset.state = "failed";
      element.textContent = "This plot could not be drawn: " + error;
      console.error(error);
    }
  };
  const plots = Array.from(document.querySelectorAll(".plot"));
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          observer.unobserve(entry.target);
          draw(entry.target);
        }
      }
    },
    { rootMargin: "800px 0px" },
  );
  for (const element of plots) observer.observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const element of plots) if (element.dataset.state === "drawn") Plotly.relayout(element, themed());
  });
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const compare = (one, other) => {
    return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
  };
  for (const table of document.querySelectorAll("table")) {
    const [body] = table.tBodies;
    const rows = Array.from(body.rows);
    const heads = Array.from(table.tHead.rows[0].cells);
    if (rows.length < 3 || heads.length < 3 || !heads[0].textContent) continue;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        // What is not known comes last in either order.
        const known = rows.filter((row) => key(row, column) !== "");
        known.sort((one, other) => compare(key(one, column), key(other, column)) * (down ? -1 : 1));
        body.append(...known, ...rows.filter((row) => key(row, column) === ""));
      });
    });
    if (rows.length < 8) continue;
    const field = document.createElement("input");
    field.type = "search";
    field.className = "filter";
    field.placeholder = "filter rows, such as block_size=128";
    field.setAttribute("aria-label", "Filter the rows of: " + table.parentElement.getAttribute("aria-label"));
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
    table.parentElement.before(field);
  }
  const studies = Array.from(document.querySelectorAll("details.study"));
  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const study = target && target.closest("details.study");
    if (!study) return;
    study.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    // The address does not change when the same link is followed again.
    if (event.target.closest('a[href^="#"]')) setTimeout(follow);
  });
  follow();
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = studies.filter((study) => !study.open);
    for (const study of folded) study.open = true;
    plots.forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    for (const study of folded) study.open = false;
  });
})();
