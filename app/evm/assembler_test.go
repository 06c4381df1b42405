//go:build !noevm

package evm

import (
	"encoding/binary"
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

// assemble translates text, such as examples/programs/*.asm, into bytecode. Words are separated by
// spaces; a semicolon begins a comment.
//
//	ADD              an instruction
//	42, 0xff         pushes a number; a PUSH before it may be written
//	'text'           pushes a word that begins with the text
//	f(bytes32)       pushes the selector of a method
//	event:E(bytes32) pushes the topic of an event
//	name:            a place to jump to
//	@name            pushes a place
//	NAME = words     NAME stands for the words from here on
//	.runtime         what follows is the program; before it is the code that deploys it
//	.size            pushes the length of the program
//	.start           pushes the position of the program in the init code
//	.args            pushes the length of the init code: the arguments of the constructor follow it
func assemble(t testing.TB, text string) []byte {
	t.Helper()
	a := &assembler{t: t, macros: map[string][]string{}, deploy: newPart(), runtime: newPart()}
	a.part = a.deploy
	for line := range strings.Lines(text) {
		a.line(line)
	}
	deploy, size := len(a.deploy.code), len(a.runtime.code)
	var code []byte
	for _, p := range []*part{a.deploy, a.runtime} {
		p.places[".size"], p.places[".start"], p.places[".args"] = size, deploy, deploy+size
		for at, name := range p.wanted {
			require.Contains(t, p.places, name)
			binary.BigEndian.PutUint16(p.code[at:], uint16(p.places[name]))
		}
		code = append(code, p.code...)
	}
	return code
}

// part is the code that deploys, or the program.
type part struct {
	code   []byte
	places map[string]int
	wanted map[int]string // where two bytes are to become a place
}

func newPart() *part { return &part{places: map[string]int{}, wanted: map[int]string{}} }

type assembler struct {
	t                     testing.TB
	deploy, runtime, part *part
	macros                map[string][]string
}

func (a *assembler) line(line string) {
	line, text := a.cutText(line)
	line, _, _ = strings.Cut(line, ";")
	words := strings.Fields(line)
	if len(words) > 2 && words[1] == "=" {
		require.NotContains(a.t, a.macros, words[0])
		for _, word := range words[2:] {
			a.macros[words[0]] = append(a.macros[words[0]], a.expand(word)...)
		}
		return
	}
	for _, word := range words {
		for _, w := range a.expand(word) {
			a.word(w, text)
		}
	}
}

// cutText cuts the text, which may have spaces, out of a line.
func (a *assembler) cutText(line string) (rest, text string) {
	code, comment, _ := strings.Cut(line, ";")
	before, from, found := strings.Cut(code, "'")
	if !found {
		return line, ""
	}
	text, after, ends := strings.Cut(from, "'")
	require.True(a.t, ends && len(text) <= 32, "%s: a text must end, and have at most 32 bytes", line)
	return before + "''" + after + ";" + comment, text
}

func (a *assembler) expand(word string) []string {
	if words, ok := a.macros[word]; ok {
		return words
	}
	return []string{word}
}

func (a *assembler) word(word, text string) {
	p := a.part
	switch name, isPlace := strings.CutSuffix(word, ":"); {
	case word == "PUSH":
	case word == ".runtime":
		a.part = a.runtime
	case word[0] == '@', word[0] == '.':
		p.code = append(p.code, byte(vm.PUSH2), 0, 0)
		p.wanted[len(p.code)-2] = strings.TrimPrefix(word, "@")
	case isPlace:
		require.NotContains(a.t, p.places, name)
		p.places[name] = len(p.code)
		p.code = append(p.code, byte(vm.JUMPDEST))
	case word == "''":
		p.push(common.RightPadBytes([]byte(text), 32))
	case strings.HasPrefix(word, "event:"):
		p.push(crypto.Keccak256([]byte(strings.TrimPrefix(word, "event:"))))
	case strings.HasSuffix(word, ")"):
		p.push(crypto.Keccak256([]byte(word))[:4])
	case strings.HasPrefix(word, "0x"):
		value := common.FromHex(word)
		require.LessOrEqual(a.t, len(value), 32, word)
		p.push(value)
	case word[0] >= '0' && word[0] <= '9':
		n, ok := new(big.Int).SetString(word, 10)
		require.True(a.t, ok && n.BitLen() <= 256, word)
		p.push(n.Bytes())
	default:
		op := vm.StringToOp(word)
		require.True(a.t, op != vm.STOP || word == "STOP", "no instruction %s", word)
		p.code = append(p.code, byte(op))
	}
}

func (p *part) push(value []byte) {
	p.code = append(append(p.code, byte(vm.PUSH0)+byte(len(value))), value...)
}
