// Where the cells of the map are: layers downwards and experts across, or turned on a narrow screen.

const GUTTER = 30; // for the numbers of layers
const LARGEST = 24;
const NARROW = 560;
const LEAST_ROW = 5;
const TALLEST = 560; // of a turned map, which a phone shows

export function mapGeometry(width, layers, experts) {
  const turned = width < NARROW && experts > layers;
  const [columns, rows] = turned ? [layers, experts] : [experts, layers];
  const inner = width - (turned ? 0 : GUTTER);
  const cellWidth = Math.min(LARGEST, inner / columns);
  const square = Math.min(LARGEST, Math.max(cellWidth, LEAST_ROW));
  const cellHeight = turned ? Math.min(square, Math.max(2, TALLEST / rows)) : square;
  const left = turned ? 0 : GUTTER;
  const top = turned ? 18 : 0;
  return {
    turned, left, top, cellWidth, cellHeight,
    gap: Math.min(cellWidth, cellHeight) >= 4 ? 1 : 0,
    width: left + columns * cellWidth,
    height: top + rows * cellHeight,
    /** The upper left corner of a cell. */
    corner: (layer, expert) => {
      const [column, row] = turned ? [layer, expert] : [expert, layer];
      return [left + column * cellWidth, top + row * cellHeight];
    },
    /** The cell at a point, or null. */
    cellAt: (x, y) => {
      const column = Math.floor((x - left) / cellWidth);
      const row = Math.floor((y - top) / cellHeight);
      if (column < 0 || row < 0 || column >= columns || row >= rows) return null;
      return turned ? { layer: column, expert: row } : { layer: row, expert: column };
    },
  };
}
