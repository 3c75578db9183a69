/** Return the lines of a CSV text as cells. Cells may be quoted; the delimiter is the most frequent of , ; and tab. */
export function parse(text) {
  const first = text.slice(0, text.indexOf("\n") + 1 || undefined);
  const delimiter = [",", ";", "\t"].reduce((best, each) => (first.split(each).length > first.split(best).length ? each : best));
  const lines = [];
  let line = [""], quoted = false;
  const source = text.replace(/^\ufeff/, "").replace(/\r\n?/g, "\n");
  for (let place = 0; place < source.length; place++) {
    const letter = source[place];
    if (quoted && letter === '"' && source[place + 1] === '"') line[line.length - 1] += source[++place];
    else if (letter === '"' && (quoted || line.at(-1) === "")) quoted = !quoted;
    else if (!quoted && letter === delimiter) line.push("");
    else if (!quoted && letter === "\n") {
      lines.push(line);
      line = [""];
    } else line[line.length - 1] += letter;
  }
  const filled = [...lines, line].filter((cells) => cells.length > 1 || cells[0].trim() !== "");
  const odd = filled.findIndex((cells) => cells.length !== filled[0].length);
  if (odd > 0) throw new Error(`Each row must have as many cells as the first line, ${filled[0].length}.\nFound: ${filled[odd].length} in row ${odd}\nFix: quote cells that contain ${delimiter === "\t" ? "tabs" : delimiter}`);
  if (filled.length) filled[0] = filled[0].map((name) => name.trim());
  return filled;
}

export function toCsv(lines) {
  const cell = (value) => (/[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}
