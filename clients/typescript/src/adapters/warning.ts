// Warnings of adapters that cannot store a value unchanged; each is emitted once per process.

const shown = new Set<string>();

/** Emits a warning of Node.js with the type `TreeringWarning`. */
export function warnOnce(text: string): void {
  if (shown.has(text)) return;
  shown.add(text);
  process.emitWarning(
    `${text}; the framework still reads its own value unchanged (this warning is shown once)`,
    "TreeringWarning",
  );
}
