package runner

import (
	"io/fs"
	"os"
)

// Own gives a folder and its content to a user. This needs root, unless the user owns it already.
func Own(dir string, uid, gid int) error {
	root, err := os.OpenRoot(dir) // symbolic links cannot lead out of it
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, uid, gid)
	})
}
