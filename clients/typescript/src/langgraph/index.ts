// A checkpointer for LangGraph.
//
//     import { TreeringSaver } from "treering/langgraph";
//
//     const graph = builder.compile({ checkpointer: new TreeringSaver(treering.local("./store")) });
//
// A thread is a conversation, and the messages of its state are events. You can search and fork
// them, and build requests for any provider. Needs `@langchain/langgraph`.

export { messages, type SaverOptions, TreeringSaver } from "./saver.js";
