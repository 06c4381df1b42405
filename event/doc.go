// Package event is the format of what watchers are told: events, tokens, requests and answers.
//
//	Request{from a Token, range of keys} ──► a node's log of events ──► Answer{events, next Token}
//
// A Token names an event by the height of its block and its number there, which are the same on all
// nodes. The messages are protobuf (docs/spec/events.md). Nothing of them is proved.
package event
