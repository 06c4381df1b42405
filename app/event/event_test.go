package event

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func sample(height int64, index uint32, key, value, previous string) Event {
	e := Event{Height: height, Index: index, Tx: bytes.Repeat([]byte{7}, hashBytes), Kind: Put, Key: []byte(key)}
	if value != "" {
		e.Value = []byte(value)
	} else {
		e.Kind = Delete
	}
	if previous != "" {
		e.Previous = []byte(previous)
	}
	return e
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for _, tok := range []Token{{1, 0}, {1200, 3}, {math.MaxInt64, math.MaxUint32}} {
		got, err := ParseToken(tok.String())
		require.NoError(t, err)
		require.Equal(t, tok, got)
	}
	for _, s := range []string{"", "1", "1.", ".1", "0.0", "-1.0", "01.0", "1.00", "+1.0", "1.-1", "1.4294967296", "9223372036854775808.0", "1.0 ", "1.0.0"} {
		_, err := ParseToken(s)
		require.ErrorIs(t, err, errToken, s)
	}
	require.True(t, Token{1, 9}.Before(Token{2, 0}))
	require.True(t, Token{1, 8}.Before(Token{1, 9}))
	require.False(t, Token{1, 9}.Before(Token{1, 9}))
	require.Equal(t, Token{2, 0}, (&Event{Height: 1, Index: math.MaxUint32}).Token())
}

func TestMessagesComeBack(t *testing.T) {
	t.Parallel()
	r := Request{From: Token{5, 1}, Keys: Keys{[]byte("a"), []byte("c")}, Previous: true, WaitMS: 700, MaxBytes: 99}
	back, err := DecodeRequest(r.Encode())
	require.NoError(t, err)
	require.Equal(t, r, back)

	omitted := sample(5, 3, "a", "v", "")
	omitted.Omitted = true
	a := Answer{Events: []Event{sample(5, 1, "a", "v", ""), omitted, sample(5, 4, "b", "", "v"), sample(9, 0, "a", "w", "v")}, Next: Token{10, 0}, Head: 9, Least: 2}
	got, err := DecodeAnswer(a.Encode(), &r)
	require.NoError(t, err)
	require.Equal(t, a, got)
}

// An invalid request is refused, and so is an answer that does not match the request.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("k"), maxKeyBytes+1)
	for name, r := range map[string]Request{
		"long start":       {Keys: Keys{Start: long}},
		"long end":         {Keys: Keys{End: long}},
		"empty range":      {Keys: Keys{[]byte("b"), []byte("b")}},
		"index, no height": {From: Token{0, 1}},
	} {
		_, err := DecodeRequest(r.Encode())
		require.Error(t, err, name)
	}
	r := Request{From: Token{5, 1}, Keys: Keys{[]byte("a"), []byte("c")}}
	good := func() Answer {
		return Answer{Events: []Event{sample(5, 1, "a", "v", ""), sample(6, 0, "b", "w", "")}, Next: Token{7, 0}, Head: 6, Least: 5}
	}
	for name, change := range map[string]func(*Answer){
		"an event before the token": func(a *Answer) { a.Events[0].Index = 0 },
		"events in no order":        func(a *Answer) { a.Events[0], a.Events[1] = a.Events[1], a.Events[0] },
		"one event twice":           func(a *Answer) { a.Events[1] = a.Events[0] },
		"an event beyond its end":   func(a *Answer) { a.Next = Token{6, 0} },
		"another key":               func(a *Answer) { a.Events[1].Key = []byte("c") },
		"no key":                    func(a *Answer) { a.Events[1].Key = nil },
		"a long key":                func(a *Answer) { a.Events[1].Key = append([]byte("b"), long...) },
		"no kind":                   func(a *Answer) { a.Events[1].Kind = "" },
		"a long kind":               func(a *Answer) { a.Events[1].Kind = string(long) },
		"a put without a value":     func(a *Answer) { a.Events[0].Value = nil },
		"a delete with a value":     func(a *Answer) { a.Events[0].Kind = Delete },
		"a client's key is granted": func(a *Answer) { a.Events[0].Kind = "grant" },
		"no hash":                   func(a *Answer) { a.Events[1].Tx = nil },
		"no height":                 func(a *Answer) { a.Events[1].Height = 0 },
		"an end before its start":   func(a *Answer) { a.Events, a.Next = nil, Token{5, 0} },
		"no end":                    func(a *Answer) { a.Events, a.Next = nil, Token{} },
		"an end beyond its head":    func(a *Answer) { a.Next.Height++ },
		"compacted, with events":    func(a *Answer) { a.Least = 6 },
	} {
		a := good()
		change(&a)
		_, err := DecodeAnswer(a.Encode(), &r)
		require.Error(t, err, name)
	}
	a := good()
	_, err := DecodeAnswer(a.Encode(), &r)
	require.NoError(t, err)
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add((&Request{From: Token{5, 1}, Keys: Keys{[]byte("a"), []byte("c")}, Previous: true, WaitMS: 700, MaxBytes: 99}).Encode())
	f.Add([]byte{})
	f.Add([]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRequest(b)
		if err != nil {
			return
		}
		again, err := DecodeRequest(r.Encode())
		require.NoError(t, err)
		require.Equal(t, r.Encode(), again.Encode())
	})
}

func FuzzDecodeAnswer(f *testing.F) {
	r := &Request{From: Token{5, 1}, Keys: Keys{Start: []byte("a")}}
	f.Add((&Answer{Events: []Event{sample(5, 1, "a", "v", ""), sample(6, 0, "b", "", "w")}, Next: Token{7, 0}, Head: 6, Least: 5}).Encode())
	f.Add((&Answer{Next: Token{5, 1}, Head: 6, Least: 6}).Encode())
	f.Add([]byte{0x0a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAnswer(b, r)
		if err != nil {
			return
		}
		again, err := DecodeAnswer(a.Encode(), r)
		require.NoError(t, err)
		require.Equal(t, a, again)
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add("1200.3")
	f.Add("1.00")
	f.Fuzz(func(t *testing.T, s string) {
		if tok, err := ParseToken(s); err == nil {
			require.Equal(t, s, tok.String())
		}
	})
}
