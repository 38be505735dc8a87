// One button for each row of the charts, which hides the row or shows it again.
(function legend() {
  const host = document.getElementById("legend");
  DATA.arms.forEach((arm, index) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = colourOf(index);
    const button = make("button", { type: "button", "aria-pressed": "true" }, swatch, arm.label + (arm.rehearsed ? " †" : ""));
    button.addEventListener("click", () => {
      const hide = !State.hidden.has(index);
      if (hide) State.hidden.add(index); else State.hidden.delete(index);
      button.setAttribute("aria-pressed", String(!hide));
      State.change("rows");
    });
    host.append(button);
  });
})();
