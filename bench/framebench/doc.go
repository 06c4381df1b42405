// Package framebench sets the frames of transport/tcp beside multiplexers that could carry the same
// calls over TLS 1.3.
//
//	call(n) ──► frames | a stream for each call ──► TLS 1.3, Ed25519, X25519 ──► loopback ──► n bytes
//	             ├── tcp        transport/tcp as a node has it
//	             ├── yamux      github.com/hashicorp/yamux over TCP
//	             ├── go-yamux   github.com/libp2p/go-yamux, its fork, over TCP
//	             └── quic       github.com/quic-go/quic-go over UDP
//
// Client and server are in this process, so CPU time is that of both sides. In each round every
// contestant has its turn: answers of a chunk's length, several at a time; small answers one after
// another, alone and beside large ones; a large call that is cancelled. Everyone reads an answer
// into the caller's buffer. What the libraries lack for our calls (an ID of the caller, limits by
// host, errors by code) is not imitated.
package framebench
