package runner

import (
	"io/fs"
	"os"
)

// Own gives a folder and all that is in it to a user. That takes root, unless it is the user's
// already.
func Own(dir string, uid, gid int) error {
	root, err := os.OpenRoot(dir) // a link in it leads nowhere else
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
