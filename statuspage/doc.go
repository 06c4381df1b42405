// Package statuspage serves a web page that shows what a node does and, while it joins, what becomes of each chunk.
//
//	                 ┌── /             page, script and style, all of them in the binary
//	Source           ├── /status.json  the Status
//	  │  asked when  ├── /events       the Status again and again, as server-sent events
//	  ▼  it is old   ├── /chunks       the Map, a few bytes a cell
//	Status, Map ─────┴── what else is mounted: health checks
//
// Whoever looks, and however slowly he reads, the Source is asked a few times a second at most, by one goroutine at a time, and answers
// are made once for all who look. Nobody can change anything here, and a browser is told not to let other sites read it: a request must
// name a host that belongs to this node, so that no name that an attacker points at 127.0.0.1 does.
package statuspage
