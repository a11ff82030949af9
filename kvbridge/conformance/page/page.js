"use strict";
// Filters. Without this script every requirement is shown, and the filters are not.
// The address keeps the state: #only=failed&find=lease. An address without "=" names a requirement.
(() => {
  const form = document.getElementById("filters");
  const all = [...document.querySelectorAll("[data-requirement]")];
  const parts = [...document.querySelectorAll(".part")];
  const texts = new Map();
  const text = (row) => {
    if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
    return texts.get(row);
  };

  const apply = () => {
    const only = form.elements.only.value;
    const words = form.elements.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of all) {
      const fits = (only === "all" || only in row.dataset) && words.every((word) => text(row).includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    for (const part of parts) part.hidden = !part.querySelector("[data-requirement]:not([hidden])");
    document.getElementById("nothing").hidden = shown > 0;
    form.elements.shown.value = shown === all.length ? `all ${shown} shown` : `${shown} of ${all.length} shown`;
  };

  const read = () => {
    const hash = location.hash.slice(1);
    if (hash.includes("=")) {
      const state = new URLSearchParams(hash);
      const only = [...form.elements.only].find((choice) => choice.value === state.get("only"));
      (only || form.elements.only[0]).checked = true;
      form.elements.find.value = state.get("find") || "";
      apply();
      return;
    }
    let id = hash;
    try {
      id = decodeURIComponent(hash);
    } catch {
      // Not encoded: it names what it says.
    }
    const target = document.getElementById(id);
    if (target && target.closest("[hidden]")) {
      form.reset();
      apply();
      target.scrollIntoView();
    }
  };

  const write = () => {
    apply();
    const state = new URLSearchParams();
    if (form.elements.only.value !== "all") state.set("only", form.elements.only.value);
    if (form.elements.find.value) state.set("find", form.elements.find.value);
    try {
      history.replaceState(null, "", String(state) ? `#${state}` : location.pathname + location.search);
    } catch {
      // Some browsers refuse this for files: the filters work all the same.
    }
  };

  form.addEventListener("input", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
  read();
  addEventListener("hashchange", read);

  // On paper a reason has to be open to be read.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.reason:not([open])")];
    for (const reason of opened) reason.open = true;
  });
  addEventListener("afterprint", () => {
    for (const reason of opened) reason.open = false;
  });
})();
