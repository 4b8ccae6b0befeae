// LangGraph in Treering: a checkpointer.
//
//     import { TreeringSaver } from "treering/langgraph";
//
//     const graph = builder.compile({ checkpointer: new TreeringSaver(treering.local("./store")) });
//
// A thread is a conversation. The messages of its state are there as messages, tool calls and
// results: searched, forked, sent to any provider. Needs `@langchain/langgraph`.

export { messages, type SaverOptions, TreeringSaver } from "./saver.js";
