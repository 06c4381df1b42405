// Package event defines the format of messages to watchers: events, tokens, requests and answers.
//
//	Request{from a Token, range of keys} ──► a node's event log ──► Answer{events, next Token}
//
// A Token names an event by the height of its block and its number in that block, which are the
// same on all nodes. The messages are protobuf (docs/spec/events.md). They are not proved.
package event
