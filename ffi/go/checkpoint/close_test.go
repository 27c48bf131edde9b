package checkpoint

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"qk"
	"qk/internal/counting"
)

// counted lets counting count for one test.
func counted(t *testing.T) int {
	allocator = counting.Allocator()
	t.Cleanup(func() { allocator = nil })
	return counting.Live()
}

func TestCloseGivesBack(t *testing.T) {
	start := counted(t)
	for name, open := range map[string]func(string) (*Checkpoint, error){"Open": Open, "Read": Read} {
		checkpoint, err := open(filepath.Join(golden, "bnb_nf4_nested"))
		must(t, err)
		if counting.Live() <= start {
			t.Fatal("the allocator is not asked")
		}
		must(t, checkpoint.Close())
		if live := counting.Live(); live != start {
			t.Errorf("%s: Close leaves %d blocks", name, live-start)
		}
		must(t, checkpoint.Close())
		runtime.KeepAlive(checkpoint)
	}
	if _, err := Open("no such file"); err == nil || counting.Live() != start {
		t.Errorf("a refused Open leaves %d blocks: %v", counting.Live()-start, err)
	}

	folder := t.TempDir()
	writer, err := NewWriter(filepath.Join(folder, "model.safetensors"))
	must(t, err)
	must(t, writer.Declare("x", F32, 2))
	must(t, writer.Write("x", make([]byte, 4)))
	must(t, writer.Close())
	runtime.KeepAlive(writer)
	if live := counting.Live(); live != start {
		t.Errorf("Close of a writer leaves %d blocks", live-start)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("Close of a writer leaves %v, %v", left, err)
	}
}

func TestNamesWithZeroBytesAreRefused(t *testing.T) {
	checkpoint := openGolden(t, "dense")
	first := checkpoint.Layers()[0].Name
	_, err := checkpoint.Layer(first + "\x00")
	refused(t, err, qk.StatusArgument, "layer: has a zero byte")
	_, err = checkpoint.Tensor("\x00")
	refused(t, err, qk.StatusArgument, "name: has a zero byte")
	_, _, err = checkpoint.Load(newContext(t), first+"\x00of another")
	refused(t, err, qk.StatusArgument, "layer: has a zero byte")
	_, err = checkpoint.VerifyLayer("\x00" + first)
	refused(t, err, qk.StatusArgument, "layer: has a zero byte")
	_, err = Open(filepath.Join(golden, "dense") + "\x00")
	refused(t, err, qk.StatusArgument, "path: has a zero byte")
	path := filepath.Join(t.TempDir(), "config.json")
	desc := qk.Desc{Format: qk.FormatF16, Shape: []int64{4, 4}}
	err = WriteConfig(nil, path, Dense, desc, qk.FormatF16, []string{"a", "b\x00c"})
	refused(t, err, qk.StatusArgument, "kept[1]: has a zero byte")
	if _, err := os.Stat(path); err == nil {
		t.Error("a refused call wrote a file")
	}
}
