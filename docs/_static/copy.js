// A button beside each block of code that copies it, without the prompts and outputs of a session.
"use strict";

function copied(block) {
  const lines = block.innerText.replace(/\n$/, "").split("\n");
  const typed = lines.filter((line) => /^(>>>|\.\.\.|\$) ?/.test(line));
  const isSession = typed.length > 0 && /^(>>>|\$) /.test(lines[0]);
  return isSession ? typed.map((line) => line.replace(/^(>>>|\.\.\.|\$) ?/, "")).join("\n") : lines.join("\n");
}

function fallback(text) {
  // Pages that are opened as files have no clipboard in some browsers.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      const text = copied(block);
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        fallback(text);
      }
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    block.parentElement.append(button);
  }
});
