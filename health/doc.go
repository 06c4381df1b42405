// Package health reports whether a node is alive and ready, from facts that the node collects.
//
//	node ──Facts──► Of ──► Report ──► GET /livez   200 or 503: does the process work?
//	                                  GET /readyz  200 or 503: does it follow the chain, and can it continue?
//
// A node is live if its supervisor need not restart it, and ready if clients may be sent to it. A
// node that joins is live but not ready. Of is pure; package node decides where the handlers are
// served.
package health
