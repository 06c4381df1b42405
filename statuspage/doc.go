// Package statuspage serves a web page that shows what a node does and, while it joins, the state
// of each chunk.
//
//	                 ┌── /             page, script and style, all of them in the binary
//	Source           ├── /status.json  the Status
//	  │  asked when  ├── /events       the Status again and again, as server-sent events
//	  ▼  outdated    ├── /chunks       the Map, a few bytes a cell
//	Status, Map ─────┴── what else is mounted: health checks
//
// However many browsers watch, and however slowly they read, the Source is asked at most a few
// times a second, by one goroutine at a time, and each answer is encoded once for all of them.
// Nobody can change anything here, and browsers are told not to let other sites read it: a request
// must name a host that belongs to this node, so a name that an attacker points at 127.0.0.1 does
// not work.
package statuspage
