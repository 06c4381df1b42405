// Package health says whether a node is alive and ready, from facts that the node collects.
//
//	node ──Facts──► Of ──► Report ──► GET /livez   200 or 503: does the process work?
//	                                  GET /readyz  200 or 503: does it follow the chain, and will it go on?
//
// Live: whoever supervises the node need not restart it. Ready: clients may be sent to it. A node that joins is live and not ready. Of is
// pure; where the handlers are served is the business of node.
package health
