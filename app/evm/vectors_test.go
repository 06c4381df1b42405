//go:build !noevm

package evm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
)

var update = flag.Bool("update", false, "write testdata/vectors.json again")

const vectorsPath = "testdata/vectors.json"

// vectorFile pins results of the engine. The reference of the other tests is the linked
// go-ethereum, so they would not notice if a newer one had other results.
type vectorFile struct {
	Comment string `json:"comment"`
	// Instructions that end a call with program.Failed and use all its gas, in hex.
	Failing string   `json:"failing_instructions"`
	Vectors []vector `json:"vectors"`
}

// vector is the result of a call. Texts other than Name are hashes (see digest).
type vector struct {
	Name    string         `json:"name"`
	Call    string         `json:"call"` // of the state before, the block, the sender and the call
	Status  program.Status `json:"status"`
	Gas     uint64         `json:"gas"`
	Records int            `json:"records"`
	Keys    string         `json:"keys"`
	Changes string         `json:"changes,omitempty"`
	Output  string         `json:"output,omitempty"` // of address, output and logs
}

// digest returns the first 8 bytes of the SHA-256 of the values in hex, or "" if all are empty.
func digest(values ...any) string {
	text := fmt.Sprintf("%x", values)
	if strings.Trim(text, "[] ") == "" {
		return ""
	}
	hash := sha256.Sum256([]byte(text))
	return hex.EncodeToString(hash[:8])
}

// TestVectors compares results with those of testdata/vectors.json.
func TestVectors(t *testing.T) {
	got := makeVectors(t)
	if *update {
		writeVectors(t, got)
	}
	raw, err := os.ReadFile(vectorsPath)
	require.NoError(t, err)
	var want vectorFile
	require.NoError(t, json.Unmarshal(raw, &want))
	require.Equal(t, want.Failing, got.Failing, "the instructions that fail; a chain of app version 2 must not see a difference")
	byName := map[string]vector{}
	for _, v := range got.Vectors {
		byName[v.Name] = v
	}
	for _, w := range want.Vectors {
		t.Run(w.Name, func(t *testing.T) {
			g, is := byName[w.Name]
			require.True(t, is, "the call is gone: if go-ethereum removed its fixture, delete the line")
			require.Equal(t, w.Call, g.Call, "another call or state before it: if go-ethereum changed its fixture, delete the line, and add the new one")
			require.Equal(t, w, g, "a chain of app version 2 must not see another result")
		})
		delete(byName, w.Name)
	}
	require.Empty(t, slices.Sorted(maps.Keys(byName)), "no vectors; if only calls were added: go test ./app/evm -run TestVectors -update")
}

// writeVectors writes one vector a line.
func writeVectors(t *testing.T, file vectorFile) {
	t.Helper()
	var lines []string
	for _, v := range file.Vectors {
		line, err := json.Marshal(v)
		require.NoError(t, err)
		lines = append(lines, "  "+string(line))
	}
	file.Vectors = nil
	head, err := json.MarshalIndent(file, "", " ")
	require.NoError(t, err)
	text := strings.Replace(string(head), "null", "[\n"+strings.Join(lines, ",\n")+"\n ]", 1)
	require.NoError(t, os.MkdirAll(filepath.Dir(vectorsPath), 0o755))
	require.NoError(t, os.WriteFile(vectorsPath, []byte(text+"\n"), 0o644)) //nolint:gosec // not secret
}

func makeVectors(t *testing.T) vectorFile {
	t.Helper()
	m := &vectorMaker{T: t, calls: map[string]bool{}}
	m.file.Comment = "Results of calls, which every version of the engine must have; app/evm/vectors_test.go explains them."
	m.instructions()
	m.heavy()
	m.precompiles()
	m.examples()
	m.fixtures()
	return m.file
}

type vectorMaker struct {
	*testing.T
	file  vectorFile
	calls map[string]bool // of the vectors: calls with the same digest need one
}

// run executes a call of w, applies its changes, and returns its vector.
func (m *vectorMaker) run(name string, w world, env program.Env, sender common.Address, call program.Call) (vector, *program.Result) {
	before := digest(w, env.ChainID, env.Height, env.Time, sender[:], call.To, call.Input, call.Gas, call.Keys, call.Unnamed, call.Touch)
	r, err := runAs(sender, env, call, w.read)
	require.NoError(m, err)
	w.apply(r.Changes)
	return vector{name, before, r.Status, r.Gas, r.Records, digest(r.Keys), digest(r.Changes), digest(r.Address, r.Output, r.Logs)}, r
}

func (m *vectorMaker) add(v vector) {
	if !m.calls[v.Call] {
		m.calls[v.Call] = true
		m.file.Vectors = append(m.file.Vectors, v)
	}
}

// code runs a program on its own.
func (m *vectorMaker) code(name string, code []byte) vector {
	w := world{}
	w.put(heavyAt, code)
	v, _ := m.run(name, w, testEnv, common.Address{1}, program.Call{To: heavyAt[:], Gas: program.MaxGas, Keys: 10_000, Unnamed: 10_000})
	return v
}

// instructions executes each of the 256 instructions once, with small numbers on the stack.
func (m *vectorMaker) instructions() {
	arguments := strings.Repeat("PUSH 5 ", 10) + "PUSH 32 PUSH 64 PUSH 32 PUSH 1 PUSH 0 PUSH 2 PUSH 0 "
	before, after := assemble(m, arguments+"DUP1 NOT PUSH 0 MSTORE "), assemble(m, strings.Repeat("JUMPDEST ", 32)+finish)
	var failing []byte
	for op := range 256 {
		// The bytes that a PUSH takes are JUMPDEST.
		v := m.code(fmt.Sprintf("instruction %02x", op), slices.Concat(before, []byte{byte(op)}, after))
		if v.Status == program.Failed && v.Gas == program.MaxGas && v.Records == 2 {
			failing = append(failing, byte(op))
		} else {
			m.add(v)
		}
	}
	m.file.Failing = hex.EncodeToString(failing)
}

// heavy executes the loops of heavy programs once.
func (m *vectorMaker) heavy() {
	programs := heavy(m)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		require.Contains(m, programs[name], again)
		m.add(m.code("heavy: "+name, assemble(m, strings.Replace(programs[name], again, finish, 1))))
	}
}

// precompiles calls the addresses of all precompiled contracts, and neighbours without a contract.
func (m *vectorMaker) precompiles() {
	small := make([]byte, 192)
	small[31], small[63], small[95], small[96], small[97], small[98] = 1, 1, 1, 3, 5, 7
	for n := range 0x102 {
		if n > 0x13 && n < 0xff {
			continue
		}
		w := world{}
		w.put(forwarderAt, assemble(m, forwarder))
		address := common.Address{18: byte(n >> 8), 19: byte(n)}
		v, _ := m.run(fmt.Sprintf("address %d", n), w, testEnv, common.Address{1}, forward(address, 1_000_000, small))
		m.add(v)
	}
}

// examples deploys and calls the programs of examples/programs.
func (m *vectorMaker) examples() {
	a, b := New().Address(alice), New().Address(bob)
	for _, e := range []struct {
		name        string
		constructor []byte
		calls       [][]byte
	}{
		{"token", []byte{100}, [][]byte{
			selector("transfer(address,uint256)", b, []byte{30}), selector("transfer(address,uint256)", b, []byte{71}),
			selector("approve(address,uint256)", a, []byte{50}), selector("transferFrom(address,address,uint256)", a, b, []byte{70}),
			selector("transferFrom(address,address,uint256)", a, b, []byte{45}), selector("balanceOf(address)", b), selector("totalSupply()"),
		}},
		{"index", nil, [][]byte{
			selector("put(bytes32,bytes32)", []byte{7}, []byte{1}), selector("put(bytes32,bytes32)", []byte{8}, []byte{1}),
			selector("put(bytes32,bytes32)", []byte{7}, []byte{2}), selector("put(bytes32,bytes32)", []byte{8}, nil),
			selector("count(bytes32)", []byte{2}), selector("find(bytes32,uint256)", []byte{2}, nil), selector("get(bytes32)", []byte{7}),
		}},
		{"rule", []byte{2}, [][]byte{selector("use()"), selector("use()"), selector("use()"), selector("left(address)", a)}},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "examples", "programs", e.name+".hex"))
		require.NoError(m, err)
		w := world{}
		call := program.Call{Input: slices.Concat(common.FromHex(strings.TrimSpace(string(text))), common.LeftPadBytes(e.constructor, 32)), Gas: 1_000_000, Keys: 100, Unnamed: 100}
		v, r := m.run("example: "+e.name, w, testEnv, common.Address(a), call)
		m.add(v)
		for n, input := range e.calls {
			call.To, call.Input = bytes.Clone(r.Address), input
			v, _ := m.run(fmt.Sprintf("example: %s, call %d", e.name, n+1), w, testEnv, common.Address(a), call)
			m.add(v)
		}
	}
}

// fixtures executes the transactions of go-ethereum's tests of tracers.
func (m *vectorMaker) fixtures() {
	for _, path := range fixtures(m) {
		name := fixtureName(path)
		m.Run("read "+name, func(t *testing.T) {
			w, env, sender, call := readFixture(t, path).call(t)
			v, _ := m.run(strings.TrimSuffix(name, ".json"), w, env, sender, call)
			m.add(v)
		})
	}
}
