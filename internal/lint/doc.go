// Package lint holds tests of the whole repository: its import graph, its README and other
// documents, the links between them, and the wording of its comments. They run in the root folder.
//
//	tx ◄─── app ───► avlstar ◄─── statesync        storage
//	 ▲       ▲          ▲             ▲               ▲
//	 │       └──────────┼──── node ───┴───────────────┘
//	client ─────────────┘      ▲
//	                           └── cmd/starlingd, e2e/byzantine
package lint
