package dsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/hexruns"
	"github.com/starling-kv/starling/internal/seeds"
)

var update = flag.Bool("update", false, "rewrite the vectors in testdata and the fuzz targets' corpora")

// vectorFile is testdata/messages.json; docs/spec/dsm.md#vectors explains it.
type vectorFile struct {
	Format  string   `json:"format"`
	About   string   `json:"about"`
	Valid   []vector `json:"valid"`
	Invalid []vector `json:"invalid"`
}

type vector struct {
	Message string `json:"message"`
	Name    string `json:"name"`
	Bytes   string `json:"bytes"` // package hexruns
	// Fields describes the message in readable form.
	Fields string `json:"fields,omitempty"`
}

// codecs decode each kind of message and encode the result.
var codecs = map[string]func([]byte) (any, []byte, error){
	"claims": func(b []byte) (any, []byte, error) {
		c, err := DecodeClaims(b)
		if err != nil {
			return nil, nil, err
		}
		again, err := EncodeClaims(c)
		return c, again, err
	},
	"loads": func(b []byte) (any, []byte, error) {
		l, err := DecodeLoads(b)
		if err != nil {
			return nil, nil, err
		}
		again, err := EncodeLoads(l)
		return l, again, err
	},
	"witness": func(b []byte) (any, []byte, error) {
		asked := WitnessAsks(b) // for arbitrary bytes
		w, err := DecodeWitness(b)
		if err != nil {
			return nil, nil, err
		}
		again, err := w.Encode()
		if want := (Asked{len(w.Wants), slices.ContainsFunc(w.Wants, func(w avlstar.Want) bool { return w.Range }), w.MaxBytes}); asked != want {
			err = fmt.Errorf("it asks for %+v, but WitnessAsks returns %+v", want, asked)
		}
		return w, again, err
	},
	"upper request": func(b []byte) (any, []byte, error) {
		u, err := DecodeUpperRequest(b)
		return u, u.Encode(), err
	},
	"upper": func(b []byte) (any, []byte, error) {
		u, err := DecodeUpper(b)
		return u, u.Encode(), err
	},
	"outline request": func(b []byte) (any, []byte, error) {
		o, err := DecodeOutlineRequest(b)
		return o, o.Encode(), err
	},
	"update part": func(b []byte) (any, []byte, error) {
		p, err := DecodeUpdatePart(b)
		return p, p.Encode(), err
	},
	"update answer": func(b []byte) (any, []byte, error) {
		a, err := DecodeUpdateAnswer(b)
		return a, a.Encode(), err
	},
}

// inWords describes a message for readers of the vectors.
func inWords(message any) string {
	switch m := message.(type) {
	case []Claim:
		var s []string
		for _, c := range m {
			s = append(s, fmt.Sprintf("%v: %d to %d, durable %d, needs %d", c.Range, c.Oldest, c.Newest, c.Durable, c.Needs))
		}
		return strings.Join(s, "; ")
	case []Load:
		var s []string
		for _, l := range m {
			s = append(s, fmt.Sprintf("%v: %d bytes, middle %q, %d reads, %d changes", l.Range, l.Bytes, l.Middle, l.Reads, l.Changes))
		}
		return strings.Join(s, "; ")
	case Witness:
		var wants []string
		for _, w := range m.Wants {
			if len(w.Key) > 100 {
				w.Key = w.Key[:1] // the key is one repeated byte
			}
			wants = append(wants, describe(w))
		}
		return fmt.Sprintf("height %d, below depth %d and %d stubs, at most %d bytes: %s", m.Height, m.Depth, len(m.Held), m.MaxBytes, strings.Join(wants, ", "))
	case UpperRequest:
		return fmt.Sprintf("height %d, depth %d", m.Height, m.Depth)
	case Upper:
		return fmt.Sprintf("commitment %x, multiproof %x", m.Commitment, m.Multiproof)
	case OutlineRequest:
		return fmt.Sprintf("height %d, %d bytes at %d", m.Height, m.Length, m.Offset)
	case UpdatePart:
		return fmt.Sprintf("height %d, range %v, %q at %d of %d", m.Height, m.Range, m.Part, m.Offset, m.Total)
	case UpdateAnswer:
		return fmt.Sprintf("durable %d, needs %d, has %d bytes", m.Durable, m.Needs, m.Have)
	}
	return "?"
}

func key(s string) []byte { return []byte(s) }

// validMessages returns the valid messages of the vectors.
func validMessages(t testing.TB) (list []vector) {
	add := func(message, name string, b []byte, err error) {
		require.NoError(t, err, name)
		fields, again, err := codecs[message](b)
		require.NoError(t, err, name)
		require.Equal(t, b, again, name)
		list = append(list, vector{message, name, hexruns.Encode(b), inWords(fields)})
	}
	claims := func(name string, c ...Claim) {
		b, err := EncodeClaims(c)
		add("claims", name, b, err)
	}
	claims("a node without ranges")
	claims("all keys, no height yet", Claim{})
	claims("two ranges, the second fetches chunks", Claim{avlstar.KeyRange{First: nil, After: key("g")}, 70, 103, 101, 104}, Claim{avlstar.KeyRange{First: key("p"), After: nil}, 0, 0, 17, 0})

	loads := func(name string, l ...Load) {
		b, err := EncodeLoads(l)
		add("loads", name, b, err)
	}
	loads("a node without ranges")
	loads("all keys, no middle", Load{})
	loads("two ranges that overlap", Load{Range: avlstar.KeyRange{After: key("g")}, Middle: key("c"), Bytes: 1 << 40, Reads: 7, Changes: math.MaxUint64},
		Load{Range: avlstar.KeyRange{First: key("f")}, Middle: key("f\x00"), Bytes: 70})

	witness := func(name string, w Witness) {
		b, err := w.Encode()
		add("witness", name, b, err)
	}
	witness("nothing wanted", Witness{Height: 1, MaxBytes: 1})
	witness("each kind of want", Witness{Height: 1000, Depth: 12, MaxBytes: 4 << 20, Wants: []avlstar.Want{
		{Key: key("z"), Range: true}, {Key: key("b"), Next: true, Deleted: true}, {Key: key("b")}, {Key: key("c"), Range: true, After: key("d"), Deleted: true},
		{Key: key("b"), Deleted: true}, {Key: key("b")}, {}, {Key: key("a"), Next: true},
	}})
	witness("below held stubs", Witness{Height: math.MaxInt64, Depth: 255, MaxBytes: math.MaxUint32,
		Held: [][32]byte{{2}, {1}, {2}}, Wants: []avlstar.Want{{Key: bytes.Repeat(key("k"), avlstar.MaxKeyBytes)}}})

	add("upper request", "to depth 12", UpperRequest{1000, 12}.Encode(), nil)
	add("outline request", "the second part", OutlineRequest{1000, MaxOutlineRange, MaxOutlineRange}.Encode(), nil)
	add("outline request", "a byte far away", OutlineRequest{math.MaxInt64, math.MaxUint64, 1}.Encode(), nil)
	add("upper", "an empty multiproof", Upper{bytes.Repeat([]byte{7}, avlstar.CommitmentBytes), []byte{1}}.Encode(), nil)

	r := avlstar.KeyRange{First: key("g"), After: key("p")}
	body := key("an encoded update")
	sum := sha256.Sum256(body)
	part := PartOf(1000, r, body, sum, 0)
	part.Part = body[:10]
	add("update part", "the first part", part.Encode(), nil)
	add("update part", "the last part", PartOf(1000, r, body, sum, 10).Encode(), nil)
	add("update part", "a probe", PartOf(1000, r, body, sum, len(body)).Encode(), nil)
	add("update answer", "in step", UpdateAnswer{998, 1001, 17}.Encode(), nil)
	add("update answer", "it fetches chunks", UpdateAnswer{}.Encode(), nil)
	return list
}

// invalidMessages returns bytes that every decoder of their kind must refuse.
func invalidMessages() (list []vector) {
	add := func(message, name string, parts ...any) {
		list = append(list, vector{Message: message, Name: name, Bytes: hexruns.Encode(join(parts...))})
	}
	u16, u32, u64 := func(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) },
		func(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) },
		func(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	k := func(s string) []byte { return append(u16(len(s)), s...) }
	heights := join(u64(1), u64(2), u64(2), u64(3))
	claim := func(first, after string) []byte { return join(k(first), k(after), heights) }

	add("claims", "no bytes")
	add("claims", "another version", []byte{2}, u16(0))
	add("claims", "more ranges than bytes", []byte{1}, u16(2), claim("", ""))
	add("claims", "more ranges than allowed", []byte{1}, u16(MaxClaims+1), bytes.Repeat(claim("", ""), MaxClaims+1))
	add("claims", "bytes left over", []byte{1}, u16(1), claim("", ""), []byte{0})
	add("claims", "ranges that overlap", []byte{1}, u16(2), claim("", "m"), claim("l", ""))
	add("claims", "ranges that descend", []byte{1}, u16(2), claim("m", "n"), claim("", "m"))
	add("claims", "a range behind an open one", []byte{1}, u16(2), claim("", ""), claim("m", ""))
	add("claims", "a range without keys", []byte{1}, u16(1), claim("m", "m"))
	add("claims", "heights that descend", []byte{1}, u16(1), k(""), k(""), u64(3), u64(2), u64(2), u64(3))
	add("claims", "a height of 0 among others", []byte{1}, u16(1), k(""), k(""), u64(0), u64(2), u64(2), u64(3))
	add("claims", "a height of 2^63", []byte{1}, u16(1), k(""), k(""), u64(1), u64(math.MinInt64), u64(2), u64(3))
	add("claims", "waiting for what is durable", []byte{1}, u16(1), k(""), k(""), u64(1), u64(2), u64(3), u64(3))
	add("claims", "a long key", []byte{1}, u16(1), u16(avlstar.MaxKeyBytes+1), bytes.Repeat(key("k"), avlstar.MaxKeyBytes+1), k(""), heights)

	load := func(first, after, middle string) []byte {
		return join(k(first), k(after), k(middle), u64(1), u64(2), u64(3))
	}
	add("loads", "no bytes")
	add("loads", "another version", []byte{2}, u16(0))
	add("loads", "more ranges than bytes", []byte{1}, u16(2), load("", "", ""))
	add("loads", "more ranges than allowed", []byte{1}, u16(MaxClaims+1), bytes.Repeat(load("", "", ""), MaxClaims+1))
	add("loads", "bytes left over", []byte{1}, u16(1), load("", "", ""), []byte{0})
	add("loads", "the same range twice", []byte{1}, u16(2), load("", "m", ""), load("", "m", ""))
	add("loads", "ranges that descend", []byte{1}, u16(2), load("m", "n", ""), load("", "m", ""))
	add("loads", "a middle outside of the range", []byte{1}, u16(1), load("m", "n", "n"))
	add("loads", "a middle that is the first key", []byte{1}, u16(1), load("m", "n", "m"))

	head := join(u64(10), []byte{12}, u32(1000))
	want := func(flags byte, keys ...string) []byte {
		b := []byte{flags}
		for _, s := range keys {
			b = append(b, k(s)...)
		}
		return b
	}
	add("witness", "no bytes")
	add("witness", "height 0", u64(0), []byte{12}, u32(1000), u32(0), u32(0))
	add("witness", "an answer of no bytes", u64(10), []byte{12}, u32(0), u32(0), u32(0))
	add("witness", "hashes that do not ascend", head, u32(2), bytes.Repeat([]byte{1}, 64), u32(0))
	add("witness", "more hashes than bytes", head, u32(2), make([]byte, 32), u32(0))
	add("witness", "2^32 - 1 wants", head, u32(0), u32(math.MaxUint32), want(0, "a"))
	add("witness", "wants that descend", head, u32(0), u32(2), want(0, "b"), want(0, "a"))
	add("witness", "a want twice", head, u32(0), u32(2), want(0, "a"), want(0, "a"))
	add("witness", "an unknown flag", head, u32(0), u32(1), want(16, "a"))
	add("witness", "a range and the next key", head, u32(0), u32(1), want(3, "a", "b"))
	add("witness", "a range without keys", head, u32(0), u32(1), want(1, "b", "b"))
	add("witness", "a range that ends early", head, u32(0), u32(1), want(1, "b"))
	add("witness", "bytes left over", head, u32(0), u32(1), want(0, "a"), []byte{0})
	add("witness", "longer than a body", head, u32(MaxHeld), make([]byte, MaxHeld*32), u32(1), want(0, "a"), make([]byte, MaxBodyBytes))

	add("upper request", "height 0", u64(0), []byte{1})
	add("upper request", "no depth", u64(1))
	add("upper request", "bytes left over", u64(1), []byte{1, 0})
	add("outline request", "height 0", u64(0), u64(0), []byte{0, 0, 0, 1})
	add("outline request", "no bytes", u64(1), u64(0), []byte{0, 0, 0, 0})
	add("outline request", "too many bytes", u64(1), u64(0), []byte{0, 0x80, 0, 1})
	add("outline request", "too short", u64(1), u64(0), []byte{0, 0, 1})
	add("outline request", "bytes left over", u64(1), u64(0), []byte{0, 0, 0, 1, 0})
	add("upper", "no multiproof", make([]byte, avlstar.CommitmentBytes))

	sum := make([]byte, 32)
	of := join(k("a"), k("b"))
	add("update part", "no bytes")
	add("update part", "height 0", u64(0), of, u32(5), u32(0), sum, key("hello"))
	add("update part", "an update of no bytes", u64(1), of, u32(0), u32(0), sum)
	add("update part", "an update that is too long", u64(1), of, u32(MaxUpdateBytes+1), u32(0), sum, key("hello"))
	add("update part", "beyond the end", u64(1), of, u32(5), u32(1), sum, key("hello"))
	add("update part", "an offset that overflows", u64(1), of, u32(5), u32(math.MaxUint32), sum, key("hello"))
	add("update part", "a probe in the middle", u64(1), of, u32(5), u32(1), sum)
	add("update part", "a range without keys", u64(1), k("b"), k("a"), u32(5), u32(0), sum, key("hello"))
	add("update part", "a part that is too long", u64(1), of, u32(MaxBodyBytes), u32(0), sum, make([]byte, MaxPartBytes+1))

	add("update answer", "too short", u64(1), u64(2))
	add("update answer", "bytes left over", u64(1), u64(2), u32(0), []byte{0})
	add("update answer", "waiting for what is durable", u64(2), u64(2), u32(0))
	add("update answer", "more than an update has", u64(1), u64(2), u32(MaxUpdateBytes+1))
	return list
}

func join(parts ...any) (b []byte) {
	for _, p := range parts {
		b = append(b, p.([]byte)...)
	}
	return b
}

// TestVectors checks that testdata/messages.json is what this package encodes. With -update, it
// writes the file.
func TestVectors(t *testing.T) {
	made, err := json.MarshalIndent(vectorFile{
		Format: "starling-dsm-1",
		About: "messages of methods 12 to 15 (docs/spec/dsm.md): valid ones decode to these fields and are encoded to these bytes again; invalid ones " +
			"must be refused. Bytes are hex; a word with *N stands for its bytes N times.",
		Valid: validMessages(t), Invalid: invalidMessages(),
	}, "", "  ")
	require.NoError(t, err)
	made = append(made, '\n')
	const file = "testdata/messages.json"
	if *update {
		require.NoError(t, os.WriteFile(file, made, 0o600))
	}
	stored, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(stored), string(made), "go test ./dsm -run TestVectors -update")

	var f vectorFile
	require.NoError(t, json.Unmarshal(stored, &f))
	for _, v := range f.Valid {
		b, err := hexruns.Decode(v.Bytes)
		require.NoError(t, err)
		fields, again, err := codecs[v.Message](b)
		require.NoError(t, err, "%s: %s", v.Message, v.Name)
		require.Equal(t, b, again, "%s: %s", v.Message, v.Name)
		require.Equal(t, v.Fields, inWords(fields), "%s: %s", v.Message, v.Name)
	}
	for _, v := range f.Invalid {
		b, err := hexruns.Decode(v.Bytes)
		require.NoError(t, err)
		_, _, err = codecs[v.Message](b)
		require.ErrorIs(t, err, ErrMessage, "%s: %s", v.Message, v.Name)
	}
}

// TestEncodersRefuse: encoders fail on messages that decoders would refuse.
func TestEncodersRefuse(t *testing.T) {
	wants := make([]avlstar.Want, MaxWants+1)
	for i := range wants {
		wants[i].Key = fmt.Append(nil, i)
	}
	held := make([][32]byte, MaxHeld+1)
	for i := range held {
		binary.BigEndian.PutUint32(held[i][:], uint32(i))
	}
	long := bytes.Repeat(key("k"), avlstar.MaxKeyBytes+1)
	for name, w := range map[string]Witness{
		"too many wants": {Height: 1, MaxBytes: 1, Wants: wants}, "too many hashes": {Height: 1, MaxBytes: 1, Held: held},
		"no height": {MaxBytes: 1}, "no bytes": {Height: 1}, "a long key": {Height: 1, MaxBytes: 1, Wants: []avlstar.Want{{Key: long}}},
		"a long end":             {Height: 1, MaxBytes: 1, Wants: []avlstar.Want{{Range: true, After: long}}},
		"an end without a range": {Height: 1, MaxBytes: 1, Wants: []avlstar.Want{{After: key("k")}}},
	} {
		_, err := w.Encode()
		require.Error(t, err, name)
	}
	_, err := Witness{Height: 1, MaxBytes: 1, Wants: wants[1:], Held: held[1:]}.Encode()
	require.NoError(t, err)
	for i := range wants {
		wants[i].Key = append(bytes.Repeat(key("k"), 100), wants[i].Key...)
	}
	_, err = Witness{Height: 1, MaxBytes: 1, Wants: wants[1:]}.Encode()
	require.ErrorContains(t, err, "witness request of 1", "it is longer than a body")
	_, err = EncodeClaims(make([]Claim, MaxClaims+1))
	require.ErrorContains(t, err, "the limit is 1024")
	_, err = EncodeClaims([]Claim{{Durable: 5, Needs: 5}})
	require.Error(t, err)
}

// TestEveryByteCounts: a message with one byte changed, removed or added is either refused or
// another message with its own encoding.
func TestEveryByteCounts(t *testing.T) {
	rng := seeds.Rand(t)
	for _, v := range validMessages(t) {
		b, err := hexruns.Decode(v.Bytes)
		require.NoError(t, err)
		for i := range min(len(b), 300) {
			at := i
			if len(b) > 300 {
				at = rng.IntN(len(b))
			}
			changed := bytes.Clone(b)
			changed[at] ^= byte(1 + rng.IntN(255))
			requireCanonical(t, v.Message, changed)
			requireCanonical(t, v.Message, b[:at])
			requireCanonical(t, v.Message, append(bytes.Clone(b[:at]), b[at+1:]...))
		}
		requireCanonical(t, v.Message, append(bytes.Clone(b), 0))
	}
}

func requireCanonical(t testing.TB, message string, b []byte) {
	t.Helper()
	before := bytes.Clone(b)
	_, again, err := codecs[message](b)
	require.Equal(t, before, b, "the decoder wrote to its input")
	if err != nil {
		require.ErrorIs(t, err, ErrMessage)
		return
	}
	require.True(t, bytes.Equal(b, again), "%s %x is encoded as %x", message, b, again)
}

func fuzzMessage(f *testing.F, message string) {
	for _, v := range append(validMessages(f), invalidMessages()...) {
		if b, err := hexruns.Decode(v.Bytes); v.Message == message && err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { requireCanonical(t, message, b) })
}

func FuzzClaims(f *testing.F)         { fuzzMessage(f, "claims") }
func FuzzLoads(f *testing.F)          { fuzzMessage(f, "loads") }
func FuzzWitness(f *testing.F)        { fuzzMessage(f, "witness") }
func FuzzUpperRequest(f *testing.F)   { fuzzMessage(f, "upper request") }
func FuzzUpper(f *testing.F)          { fuzzMessage(f, "upper") }
func FuzzOutlineRequest(f *testing.F) { fuzzMessage(f, "outline request") }
func FuzzUpdatePart(f *testing.F)     { fuzzMessage(f, "update part") }
func FuzzUpdateAnswer(f *testing.F)   { fuzzMessage(f, "update answer") }

// TestCorpora writes, with -update, fuzz corpora for the messages that contain lists: random
// messages for the fuzzer to mutate.
func TestCorpora(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 15))
	for i := range 4 {
		w := Witness{Height: 1 + rng.Int64N(1000), Depth: uint8(rng.IntN(20)), MaxBytes: 1 + rng.Uint32N(1<<20)}
		for range rng.IntN(4) {
			w.Held = append(w.Held, [32]byte{byte(rng.IntN(256))})
		}
		for range 1 + rng.IntN(6) {
			w.Wants = append(w.Wants, randomWant(rng))
		}
		b, err := w.Encode()
		require.NoError(t, err)
		corpus(t, "FuzzWitness", i, b)

		var claims []Claim
		r := randomRanges(t, rng)
		for j := range r.Len() {
			h := rng.Int64N(1000)
			claims = append(claims, Claim{r.Shard(j).Range, 1 + h, 1 + h + rng.Int64N(5), h, h + 1 + rng.Int64N(3)})
		}
		b, err = EncodeClaims(claims)
		require.NoError(t, err)
		corpus(t, "FuzzClaims", i, b)

		body := bytes.Repeat([]byte{byte(i)}, 1+rng.IntN(50))
		corpus(t, "FuzzUpdatePart", i, PartOf(1+h64(rng), r.Shard(0).Range, body, sha256.Sum256(body), rng.IntN(len(body)+1)).Encode())
	}
}

func h64(rng *rand.Rand) int64 { return rng.Int64N(1 << 40) }

func corpus(t *testing.T, target string, i int, b []byte) {
	name := filepath.Join("testdata", "fuzz", target, fmt.Sprintf("random-%d", i))
	text := fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", b)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o750))
		require.NoError(t, os.WriteFile(name, text, 0o600))
	}
	stored, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(text), string(stored), "go test ./dsm -run TestCorpora -update")
}

// TestDecodersAllocateLittle: a decoder allocates at most a small multiple of its input.
func TestDecodersAllocateLittle(t *testing.T) {
	const times = 20
	var wants []byte
	for i := range MaxWants { // the shortest ascending keys
		wants = append(wants, 0, 0, 2, byte(i>>8), byte(i))
	}
	body := join(make([]byte, 7), []byte{10, 12}, []byte{0, 0, 0, 1}, make([]byte, 4), binary.BigEndian.AppendUint32(nil, MaxWants), wants)
	w, err := DecodeWitness(body)
	require.NoError(t, err)
	require.Len(t, w.Wants, MaxWants)
	claims := join([]byte{1}, binary.BigEndian.AppendUint16(nil, MaxClaims), make([]byte, MaxClaims*36))
	for name, decode := range map[string]func(){
		"wants":             func() { _, _ = DecodeWitness(body) },
		"claims":            func() { _, _ = DecodeClaims(claims) },
		"wants, cut off":    func() { _, _ = DecodeWitness(body[:len(body)/2]) },
		"a count of wants":  func() { _, _ = DecodeWitness(body[:17+4]) },
		"a count of claims": func() { _, _ = DecodeClaims(claims[:3]) },
	} {
		n := len(body)
		if name == "claims" {
			n = len(claims)
		}
		if name == "a count of wants" || name == "a count of claims" {
			n = 100 // the error
		}
		got := allocated(decode)
		require.LessOrEqual(t, got, uint64(times*n), name)
	}
}

// allocated returns the mean number of bytes that f allocates over many calls, so that other
// allocations of the process hardly count.
func allocated(f func()) uint64 {
	const calls = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		f()
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / calls
}
