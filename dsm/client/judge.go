package client

import (
	"bytes"
	"errors"
	"math"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/transport"
)

// reasonOf returns why a request failed that has no answer.
func reasonOf(err error) ask.Reason {
	switch {
	case errors.Is(err, transport.ErrGone):
		return ask.Gone
	case errors.Is(err, transport.ErrBusy):
		return ask.Busy
	case errors.Is(err, transport.ErrRefused):
		return ask.Refused
	}
	return ask.Broken
}

// judge translates an answer into an event for the machine, and returns its multiproof if that is
// usable. An answer is refuted only if no honest node can send it at any height. held must be
// sorted.
func judge(a ask.Ask, held [][32]byte, depth uint8, b []byte, err error) (ask.Event, *avlstar.Multiproof) {
	failed := func(r ask.Reason) ask.Event { return ask.Failed{Request: a.Request, Reason: r} }
	refuted := func(v ask.Verdict) ask.Event { return ask.Refuted{Request: a.Request, Verdict: v} }
	switch {
	case errors.Is(err, transport.ErrTooLong) || len(b) > maxMultiproof:
		return refuted(ask.TooLong), nil
	case err != nil:
		return failed(reasonOf(err)), nil
	case len(b) == 0:
		return failed(ask.TooLarge), nil
	}
	multiproof, err := avlstar.DecodeMultiproof(b)
	if err != nil {
		return refuted(ask.Undecodable), nil
	}
	roots := len(multiproof.Roots())
	if roots == 0 {
		return failed(ask.Nothing), nil // perhaps another replica has more
	}
	if unaskedLeaves(multiproof, a.Wants) {
		return refuted(ask.Unasked), nil
	}
	if len(held) > 0 && depth == math.MaxUint8 {
		multiproof = multiproof.Only(func(root avlstar.Stub) bool {
			_, is := slices.BinarySearchFunc(held, [32]byte(root.Hash), compareHashes)
			return is
		})
		switch left := len(multiproof.Roots()); {
		case left == 0:
			return refuted(ask.OpensNothing), nil
		case left < roots:
			return ask.Refuted{Request: a.Request, Verdict: ask.Unasked, Bytes: multiproof.Bytes()}, multiproof
		}
	}
	left := []avlstar.Want{}
	for _, w := range a.Wants {
		if !w.Range && !w.Next && multiproof.Omits(w) {
			left = append(left, w)
		}
	}
	if len(left) > 0 {
		return ask.Refuted{Request: a.Request, Verdict: ask.Omits, Bytes: multiproof.Bytes(), Left: left}, multiproof
	}
	e := ask.Proved{Request: a.Request, Bytes: multiproof.Bytes(), Leaves: make([][]byte, len(a.Around))}
	next := multiproof.LeafBelow
	if a.Above {
		next = multiproof.LeafAbove
	}
	for i, key := range a.Around {
		if leaf, ok := next(key); ok {
			e.Leaves[i] = bytes.Clone(leaf)
		}
	}
	return e, multiproof
}

// unaskedLeaves reports whether a multiproof has more leaves than an honest node would send. The
// path to a key ends at one leaf, and a range may start with one leaf that is not in the range.
// Without this limit, a node could make blocks too large by adding leaves that were not requested.
func unaskedLeaves(multiproof *avlstar.Multiproof, wants []avlstar.Want) bool {
	beside := multiproof.Leaves()
	if beside <= len(wants) {
		return false
	}
	ranges := slices.DeleteFunc(slices.Clone(wants), func(w avlstar.Want) bool { return !w.Range })
	if len(ranges) == 0 {
		return true
	}
	slices.SortFunc(ranges, func(a, b avlstar.Want) int { return bytes.Compare(a.Key, b.Key) })
	var upTo []byte // the greatest end of the ranges begun so far; nil: open
	begun := 0
	for key := range multiproof.LeafKeys() {
		for ; begun < len(ranges) && bytes.Compare(ranges[begun].Key, key) <= 0; begun++ {
			after := ranges[begun].After
			if begun == 0 || after == nil || upTo != nil && bytes.Compare(after, upTo) > 0 {
				upTo = after
			}
		}
		if begun > 0 && (upTo == nil || bytes.Compare(key, upTo) < 0) {
			beside--
		}
	}
	return beside > len(wants)
}

func compareHashes(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) }
