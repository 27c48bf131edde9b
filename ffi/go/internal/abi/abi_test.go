package abi

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
	"unsafe"
)

type layout struct {
	PointerBytes uintptr `json:"pointer_bytes"`
	Constants    map[string]int64
	Structs      map[string]struct {
		Bytes  uintptr
		Fields map[string]struct{ Offset, Bytes uintptr }
	}
	Functions map[string]any
}

// named counts fields without cgo's padding.
func named(structure reflect.Type) int {
	count := 0
	for i := 0; i < structure.NumField(); i++ {
		if structure.Field(i).Name != "_" {
			count++
		}
	}
	return count
}

// TestPinned compares with tests/abi/layout.json, both ways: nothing missing, nothing more.
func TestPinned(t *testing.T) {
	text, err := os.ReadFile("../../../../tests/abi/layout.json")
	if err != nil {
		t.Fatal(err)
	}
	var pinned layout
	if err := json.Unmarshal(text, &pinned); err != nil {
		t.Fatal(err)
	}
	if pinned.PointerBytes != unsafe.Sizeof(uintptr(0)) {
		t.Skip("layout.json was measured on a machine of another pointer size")
	}
	for name, value := range pinned.Constants {
		if here, found := Constants[name]; !found || here != value {
			t.Errorf("%s: is %d here (there: %t), pinned %d", name, here, found, value)
		}
	}
	for name, pinned := range pinned.Structs {
		here, found := Structs[name]
		if !found || here.Size() != pinned.Bytes || named(here) != len(pinned.Fields) {
			t.Errorf("%s: is %v here, pinned with %d bytes and %d fields", name, here, pinned.Bytes,
				len(pinned.Fields))
			continue
		}
		for field, at := range pinned.Fields {
			got, found := here.FieldByName(field)
			if !found || got.Offset != at.Offset || got.Type.Size() != at.Bytes {
				t.Errorf("%s.%s: is %+v here, pinned %+v", name, field, got, at)
			}
		}
	}
	for name := range pinned.Functions {
		if Functions[name] == nil {
			t.Errorf("%s: is not linked", name)
		}
	}
	if len(Constants) != len(pinned.Constants) || len(Structs) != len(pinned.Structs) ||
		len(Functions) != len(pinned.Functions) {
		t.Error("layout.json does not have all that is listed here")
	}
	if len(Constants) < 100 || len(Functions) < 60 {
		t.Error("layout.json was not understood")
	}
}
