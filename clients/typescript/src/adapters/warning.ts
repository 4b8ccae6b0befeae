// Warnings of adapters that cannot store a value unchanged; each is emitted once per process.

const said = new Set<string>();

/** Emits a warning of Node.js with the type `TreeringWarning`. */
export function warnOnce(text: string): void {
  if (said.has(text)) return;
  said.add(text);
  process.emitWarning(
    `${text}; the framework has its own value back as it was (this is said once)`,
    "TreeringWarning",
  );
}
