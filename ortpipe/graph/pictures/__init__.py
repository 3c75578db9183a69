"""A graph as text, as a drawing in DOT, and as SVG."""
