/*
The boxes of a table: cells in one box share a mean and a variance.
*/

/**
 * Where boxes begin: the cells of one box share a statistic.
 * @type {(partition: Partition, shape: { rows: number; columns: number }) => Boxes}
 */
export function boxesOf({ index }, { rows, columns }) {
    return {
        rowStarts: indicesUpTo(rows).filter((i) => i === 0 || index[i][0] !== index[i - 1][0]),
        columnStarts: indicesUpTo(columns).filter((j) => j === 0 || index[0][j] !== index[0][j - 1]),
    };
}

/** @type {(boxes: Boxes, at: Place, shape: { rows: number; columns: number }) => Area} */
export function boxAround({ rowStarts, columnStarts }, at, { rows, columns }) {
    const i = rowStarts.findLastIndex((start) => start <= at.row);
    const j = columnStarts.findLastIndex((start) => start <= at.column);
    return {
        row: rowStarts[i], high: (rowStarts[i + 1] ?? rows) - rowStarts[i],
        column: columnStarts[j], wide: (columnStarts[j + 1] ?? columns) - columnStarts[j],
    };
}

/** @type {(boxes: Boxes, rows: number) => string[]} */
export function sampleNames({ rowStarts }, rows) {
    return rowStarts.map((start, i) => ((rowStarts[i + 1] ?? rows) - start > 1 ? `sample ${i + 1}` : `${i + 1}`));
}

/** @type {(boxes: Boxes, columns: number) => string[]} */
export function groupNames({ columnStarts }, columns) {
    return columnStarts.map((_, j) => (columnStarts.length < columns ? `group ${j + 1}` : `g${j + 1}`));
}

/** @type {(count: number) => number[]} */
export function indicesUpTo(count) {
    return Array.from({ length: count }, (_, i) => i);
}
