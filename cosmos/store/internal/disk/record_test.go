package disk

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/internal/spectest"
)

const vectorsFile = "../../testdata/records.json"

var update = flag.Bool("update", false, "write "+vectorsFile)

// hexBytes is encoded as a hexadecimal string in JSON.
type hexBytes []byte

func (b hexBytes) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(b)), nil }

func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

// vector is a record of a commit (docs/spec/cosmosstore.md#on-disk).
type vector struct {
	Name      string        `json:"name"`
	Height    int64         `json:"height"`
	Previous  int64         `json:"previous"`
	PartBytes int           `json:"part_bytes"` // maximum length of a part
	Stores    []vectorStore `json:"stores"`
	Entries   []vectorEntry `json:"entries"` // database entries, one for each part
}

type vectorStore struct {
	Name    string         `json:"name"`
	Changes []vectorChange `json:"changes"`
}

type vectorChange struct {
	Key    hexBytes `json:"key"`
	Stored hexBytes `json:"stored,omitempty"` // absent: the key is deleted
}

type vectorEntry struct {
	Key   hexBytes `json:"key"`
	Value hexBytes `json:"value"`
}

// invalidVector is a record that every reader must reject.
type invalidVector struct {
	Name    string        `json:"name"`
	Height  int64         `json:"height"`
	Error   string        `json:"error"` // substring of this implementation's error
	Entries []vectorEntry `json:"entries"`
}

type vectorFile struct {
	Records []vector        `json:"records"`
	Invalid []invalidVector `json:"invalid"`
}

func (v vector) record() commitRecord {
	r := commitRecord{previous: v.Previous}
	for _, s := range v.Stores {
		changes := Changes{Name: s.Name}
		for _, c := range s.Changes {
			changes.Changes = append(changes.Changes, avlstar.Change{Key: c.Key, Value: c.Stored})
		}
		r.stores = append(r.stores, changes)
	}
	return r
}

func encodeParts(r commitRecord, height int64, limit int) (entries []vectorEntry) {
	defer func(old int) { partBytes = old }(partBytes)
	partBytes = limit
	for i, part := range r.encode() {
		entries = append(entries, vectorEntry{logKey(height, uint32(i)), part})
	}
	return entries
}

func put(key, stored string) vectorChange {
	return vectorChange{Key: hexBytes(key), Stored: hexBytes(stored)}
}

// makeVectors encodes the records with the code under test.
func makeVectors() (f vectorFile) {
	const whole = 4 << 20
	bank := vectorStore{"bank", []vectorChange{put("a", "1"), put("b", "\x00"), put("c", ""), put("d", strings.Repeat("d", 200))}}
	f.Records = []vector{
		{Name: "the first commit, which changes nothing", Height: 1, PartBytes: whole, Stores: []vectorStore{}},
		{Name: "one key", Height: 2, Previous: 1, PartBytes: whole, Stores: []vectorStore{{"bank", []vectorChange{put("k", "v")}}}},
		{Name: "puts, an empty value, a deletion", Height: 300, Previous: 299, PartBytes: whole, Stores: []vectorStore{bank}},
		{Name: "heights between which there was no store", Height: 1 << 40, Previous: 7, PartBytes: whole, Stores: []vectorStore{
			{"acc", []vectorChange{put("\x00", "x")}}, bank, {"gov", []vectorChange{put("\xff", "")}}}},
		{Name: "a store that was removed and comes back", Height: 9, Previous: 8, PartBytes: whole, Stores: []vectorStore{
			{"bank", []vectorChange{put("a", ""), put("b", "")}}, {"bank", []vectorChange{put("b", "new")}}}},
		{Name: "parts", Height: 3, Previous: 2, PartBytes: 100, Stores: []vectorStore{bank}},
		{Name: "an empty last part", Height: 3, Previous: 2, PartBytes: 20, Stores: []vectorStore{{"s", []vectorChange{put("k", "v")}}}},
	}
	for i := range f.Records {
		v := &f.Records[i]
		v.Entries = encodeParts(v.record(), v.Height, v.PartBytes)
	}
	damaged := func(name, why string, of int, damage func(e []vectorEntry) []vectorEntry) {
		v := f.Records[of]
		e := encodeParts(v.record(), v.Height, v.PartBytes)
		f.Invalid = append(f.Invalid, invalidVector{name, v.Height, why, damage(e)})
	}
	damaged("another format", "format 2", 1, func(e []vectorEntry) []vectorEntry { e[0].Value[0] = 2; return e })
	damaged("no parts", "0 parts", 1, func(e []vectorEntry) []vectorEntry { e[0].Value[2] = 0; return e })
	damaged("nothing", "ends in a number", 1, func(e []vectorEntry) []vectorEntry { e[0].Value = hexBytes{}; return e })
	damaged("it ends in a value", "a field of 1 bytes", 1, func(e []vectorEntry) []vectorEntry {
		e[0].Value = e[0].Value[:len(e[0].Value)-1]
		return e
	})
	damaged("it ends before a change", "ends in a number", 1, func(e []vectorEntry) []vectorEntry {
		e[0].Value = e[0].Value[:len(e[0].Value)-4]
		return e
	})
	damaged("a key of 4,097 bytes", "a field of 4097 bytes", 0, func(e []vectorEntry) []vectorEntry {
		long := vector{Stores: []vectorStore{{"s", []vectorChange{put(strings.Repeat("k", 4097), "v")}}}}
		return encodeParts(long.record(), 1, whole)
	})
	damaged("a part in the middle is missing", "part 1 of", 5, func(e []vectorEntry) []vectorEntry { return append(e[:1], e[2:]...) })
	damaged("the last part is missing", "is missing", 6, func(e []vectorEntry) []vectorEntry { return e[:len(e)-1] })
	return f
}

// TestSpecExample makes the values and the record in docs/spec/cosmosstore.md.
func TestSpecExample(t *testing.T) {
	empty, zero := store.Escape(nil), store.Escape([]byte{0, 1})
	bank := vectorStore{"bank", []vectorChange{put("a", "1"), {Key: hexBytes("b"), Stored: empty}, put("c", "")}}
	entries := encodeParts(vector{Previous: 299, Stores: []vectorStore{bank}}.record(), 300, partBytes)
	require.Len(t, entries, 1)
	spectest.Require(t, "cosmosstore.md", empty, zero, entries[0].Key, entries[0].Value)
}

func TestRecordVectors(t *testing.T) {
	made, err := json.MarshalIndent(makeVectors(), "", " ")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(vectorsFile, append(made, '\n'), 0o644))
	}
	b, err := os.ReadFile(vectorsFile)
	require.NoError(t, err)
	require.Equal(t, string(b), string(made)+"\n", "go test ./internal/disk -update writes the file")
	var f vectorFile
	require.NoError(t, json.Unmarshal(b, &f))
	require.Len(t, f.Records, 7)
	require.Empty(t, f.Records[6].Entries[len(f.Records[6].Entries)-1].Value)
	read := func(height int64, entries []vectorEntry) (commitRecord, bool, error) {
		db := dbm.NewMemDB()
		for _, e := range entries {
			require.NoError(t, db.Set(e.Key, e.Value))
		}
		return readRecord(db, height)
	}
	for _, v := range f.Records {
		t.Run(v.Name, func(t *testing.T) {
			want := v.record()
			require.Equal(t, v.Entries, encodeParts(want, v.Height, v.PartBytes))
			got, ok, err := read(v.Height, v.Entries)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, want, got)
			// Without the first part there is no record.
			_, ok, err = read(v.Height, v.Entries[1:])
			require.NoError(t, err)
			require.False(t, ok)
		})
	}
	for _, v := range f.Invalid {
		t.Run(v.Name, func(t *testing.T) {
			_, _, err := read(v.Height, v.Entries)
			require.ErrorIs(t, err, errRecord)
			require.ErrorContains(t, err, v.Error)
		})
	}
}
