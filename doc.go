// Package starling holds what concerns the whole repository: the tests of its import graph and of its README.
//
//	tx ◄─── app ───► avlstar ◄─── statesync        storage
//	 ▲       ▲          ▲             ▲               ▲
//	 │       └──────────┼──── node ───┴───────────────┘
//	client ─────────────┘      ▲
//	                           └── cmd/starlingd, e2e/byzantine
package starling
