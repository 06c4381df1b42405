//go:build !noevm

// Package abi encodes calls of programs, and decodes their outputs, in Ethereum's contract ABI.
// Methods are written as in Solidity, with the types of outputs after those of inputs:
//
//	transfer(address,uint256)            balanceOf(address)(uint256)            constructor(string,uint8)
package abi

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Method is a method of a program.
type Method struct {
	name            string
	inputs, outputs abi.Arguments
}

// Parse parses a method. The name "constructor" stands for the constructor, which has no selector.
// Tuples are not supported.
func Parse(text string) (Method, error) {
	text = strings.TrimSpace(text)
	name, rest, ok := strings.Cut(text, "(")
	if !ok || !names.MatchString(name) || !strings.HasSuffix(rest, ")") {
		return Method{}, fmt.Errorf("%q is not a method like transfer(address,uint256) or balanceOf(address)(uint256)", text)
	}
	inputs, outputs, _ := strings.Cut(strings.TrimSuffix(rest, ")"), ")(")
	m := Method{name: name}
	var err error
	if m.inputs, err = arguments(inputs); err == nil {
		m.outputs, err = arguments(outputs)
	}
	if err != nil {
		return Method{}, fmt.Errorf("method %q: %w", text, err)
	}
	return m, nil
}

// go-ethereum takes what follows a type, such as the name of an argument, into the selector.
var (
	names = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)
	types = regexp.MustCompile(`^(u?int|u?int[1-9][0-9]*|bytes|bytes[1-9][0-9]*|address|bool|string|function)(\[([1-9][0-9]{0,4})?\])*$`)
)

func arguments(list string) (abi.Arguments, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	var all abi.Arguments
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if strings.ContainsAny(name, "()") || strings.HasPrefix(name, "tuple") {
			return nil, errors.New("tuples are not supported: encode the call with another program, and pass it as hex")
		}
		if !types.MatchString(name) {
			return nil, fmt.Errorf("%q is not a type: write types without names of arguments", name)
		}
		if strings.HasPrefix(name, "uint[") || strings.HasPrefix(name, "int[") || name == "uint" || name == "int" {
			name = strings.Replace(name, "int", "int256", 1)
		}
		t, err := abi.NewType(name, "", nil)
		if err != nil {
			return nil, fmt.Errorf("%q is not a type: %w", name, err)
		}
		if !exists(t) {
			return nil, fmt.Errorf("%q is not a type: there are uint8 to uint256 in steps of 8 bits, and bytes1 to bytes32", name)
		}
		all = append(all, abi.Argument{Type: t})
	}
	return all, nil
}

// exists reports whether the size of a type, or of its elements, is one of Solidity's. go-ethereum
// accepts others.
func exists(t abi.Type) bool {
	switch t.T {
	case abi.UintTy, abi.IntTy:
		return t.Size >= 8 && t.Size <= 256 && t.Size%8 == 0
	case abi.FixedBytesTy:
		return t.Size >= 1 && t.Size <= 32
	case abi.SliceTy, abi.ArrayTy:
		return exists(*t.Elem)
	}
	return true
}

// Encode returns the input of a call with these arguments: the selector (4 bytes; none for a
// constructor), and the encoded arguments. Arrays are JSON lists, bytes and addresses are hex after
// 0x.
func (m Method) Encode(arguments []string) ([]byte, error) {
	if len(arguments) != len(m.inputs) {
		return nil, fmt.Errorf("%s has %d arguments, not %d", m.name, len(m.inputs), len(arguments))
	}
	values := make([]any, len(arguments))
	for i, text := range arguments {
		value, err := parse(m.inputs[i].Type, text)
		if err != nil {
			return nil, fmt.Errorf("argument %d of %s: %w", i+1, m.name, err)
		}
		values[i] = value.Interface()
	}
	packed, err := m.inputs.Pack(values...)
	if err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", m.name, err)
	}
	if m.name == "constructor" {
		return packed, nil
	}
	return append(m.selector(), packed...), nil
}

// selector returns the first 4 bytes of the hash of the method's name and types.
func (m Method) selector() []byte {
	words := make([]string, len(m.inputs))
	for i, a := range m.inputs {
		words[i] = a.Type.String()
	}
	return crypto.Keccak256([]byte(m.name + "(" + strings.Join(words, ",") + ")"))[:4]
}

// parse returns the Go value that go-ethereum encodes as t.
func parse(t abi.Type, text string) (reflect.Value, error) {
	wrong := func(form string) (reflect.Value, error) {
		return reflect.Value{}, fmt.Errorf("%q is not of type %s: %s", text, t, form)
	}
	switch t.T {
	case abi.UintTy, abi.IntTy:
		base, digits := 10, text
		if hex, is := strings.CutPrefix(text, "0x"); is {
			base, digits = 16, hex
		}
		n, ok := new(big.Int).SetString(digits, base)
		if !ok || t.T == abi.UintTy && n.Sign() < 0 || n.BitLen() > t.Size || t.T == abi.IntTy && !fits(n, t.Size) {
			return wrong("write a number in decimal, or in hex after 0x, within its range")
		}
		if t.GetType().Kind() == reflect.Pointer {
			return reflect.ValueOf(n), nil
		}
		if t.T == abi.UintTy {
			return reflect.ValueOf(n.Uint64()).Convert(t.GetType()), nil
		}
		return reflect.ValueOf(n.Int64()).Convert(t.GetType()), nil
	case abi.BoolTy:
		if text != "true" && text != "false" {
			return wrong("write true or false")
		}
		return reflect.ValueOf(text == "true"), nil
	case abi.StringTy:
		return reflect.ValueOf(text), nil
	case abi.AddressTy, abi.BytesTy, abi.FixedBytesTy:
		raw, err := hex.DecodeString(strings.TrimPrefix(text, "0x"))
		if err != nil || t.T == abi.AddressTy && len(raw) != common.AddressLength || t.T == abi.FixedBytesTy && len(raw) != t.Size {
			return wrong("write all of its bytes in hex after 0x")
		}
		switch t.T {
		case abi.AddressTy:
			return reflect.ValueOf(common.BytesToAddress(raw)), nil
		case abi.BytesTy:
			return reflect.ValueOf(raw), nil
		}
		array := reflect.New(t.GetType()).Elem()
		reflect.Copy(array, reflect.ValueOf(raw))
		return array, nil
	case abi.SliceTy, abi.ArrayTy:
		return parseList(t, text)
	}
	return wrong("this type is not supported")
}

func fits(n *big.Int, bits int) bool {
	limit := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	return n.Cmp(limit) < 0 && n.Cmp(new(big.Int).Neg(limit)) >= 0
}

func parseList(t abi.Type, text string) (reflect.Value, error) {
	var items []json.RawMessage
	if err := json.Unmarshal([]byte(text), &items); err != nil || t.T == abi.ArrayTy && len(items) != t.Size {
		return reflect.Value{}, fmt.Errorf("%q is not of type %s: write a JSON list of its elements", text, t)
	}
	list := reflect.MakeSlice(reflect.SliceOf(t.Elem.GetType()), 0, len(items))
	for i, item := range items {
		word := string(item)
		if item[0] == '"' {
			if err := json.Unmarshal(item, &word); err != nil {
				return reflect.Value{}, fmt.Errorf("element %d: %w", i, err)
			}
		}
		value, err := parse(*t.Elem, word)
		if err != nil {
			return reflect.Value{}, fmt.Errorf("element %d: %w", i, err)
		}
		list = reflect.Append(list, value)
	}
	if t.T == abi.SliceTy {
		return list, nil
	}
	array := reflect.New(t.GetType()).Elem()
	reflect.Copy(array, list)
	return array, nil
}

// Decode returns the outputs of a call as text, one for each type. Without types it returns the
// whole output in hex.
func (m Method) Decode(output []byte) ([]string, error) {
	if len(m.outputs) == 0 {
		if len(output) == 0 {
			return nil, nil
		}
		return []string{"0x" + hex.EncodeToString(output)}, nil
	}
	values, err := m.outputs.Unpack(output)
	if err != nil {
		return nil, fmt.Errorf("the output 0x%x is not of the types of %s: %w", output, m.name, err)
	}
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = format(m.outputs[i].Type, reflect.ValueOf(value))
	}
	return texts, nil
}

func format(t abi.Type, v reflect.Value) string {
	if t.T == abi.SliceTy || t.T == abi.ArrayTy { // that of uint8 is like bytes in Go
		items := make([]string, v.Len())
		for i := range items {
			items[i] = format(*t.Elem, v.Index(i))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	switch value := v.Interface().(type) {
	case common.Address:
		return "0x" + hex.EncodeToString(value[:])
	case []byte:
		return "0x" + hex.EncodeToString(value)
	case string:
		if utf8.ValidString(value) {
			return strconv.Quote(value)
		}
		return "0x" + hex.EncodeToString([]byte(value))
	case *big.Int:
		return value.String()
	}
	if v.Kind() == reflect.Array {
		raw := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(raw), v)
		return "0x" + hex.EncodeToString(raw)
	}
	return fmt.Sprint(v.Interface())
}
