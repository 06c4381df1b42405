// Package starling holds the tests that concern the whole repository: its import graph, its README
// and other documents, the links between them, and the words of its comments.
//
//	tx ◄─── app ───► avlstar ◄─── statesync        storage
//	 ▲       ▲          ▲             ▲               ▲
//	 │       └──────────┼──── node ───┴───────────────┘
//	client ─────────────┘      ▲
//	                           └── cmd/starlingd, e2e/byzantine
package starling
