/** Elements: `element("button", {type: "button", onclick}, "Stop")`. Text is always set as text, never as HTML. */
const SVG = ["svg", "path", "line", "rect", "text", "title"];

export function element(tag, attributes = {}, ...children) {
  const svg = SVG.includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export const at = (id) => document.getElementById(id);

export function percent(share) {
  return `${(100 * share).toFixed(share > 0.9995 || share === 0 ? 0 : 1)} %`;
}

export function download(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
