// Package statuspage serves a web page that shows what a node does and, during a join, the state of
// each chunk.
//
//	                 ┌── /             page, script and style, embedded in the binary
//	Source           ├── /status.json  the Status
//	  │  asked when  ├── /events       a stream of Statuses, as server-sent events
//	  ▼  outdated    ├── /chunks       the Map, a few bytes per cell
//	Status, Map ─────┴── further mounted handlers: health checks
//
// Regardless of the number and speed of the browsers, the Source is called at most a few times per
// second, by one goroutine at a time, and each result is encoded once for all clients. The page is
// read-only, and headers forbid other sites to read it: a request must name a host of this node,
// which prevents DNS rebinding to 127.0.0.1.
package statuspage
