// Search in all documents. The index is a script of one call, loaded when the field is used first.
'use strict';

const field = document.getElementById('search');
const found = document.getElementById('found');
const root = document.currentScript.src; // the site's folder, for relative addresses
let pages;

// searchIndex is called by the index.
function searchIndex(index) {
  pages = index.map(page => ({...page, words: page.text.toLowerCase(), name: page.title.toLowerCase()}));
  show();
}

function load() {
  if (pages) return;
  pages = [];
  const index = document.createElement('script');
  index.src = new URL('search-index.js', root).href;
  document.head.append(index);
}

// matches returns the pages that contain all words, those with words in their title first.
function matches(words) {
  const score = page => words.reduce((sum, word) => sum + 50 * page.name.includes(word) + Math.min(page.words.split(word).length - 1, 20), 0);
  return pages.filter(page => words.every(word => page.words.includes(word)))
    .map(page => [score(page), page]).sort((a, b) => b[0] - a[0]).slice(0, 12).map(([, page]) => page);
}

// excerpt returns the text around the first place of a word.
function excerpt(page, word) {
  const at = Math.max(page.words.indexOf(word) - 60, 0);
  return '… ' + page.text.slice(at, at + 160).replace(/\s+/g, ' ') + ' …';
}

function show() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.replaceChildren(...(words.length ? matches(words) : []).map(page => {
    const item = document.createElement('li');
    const link = document.createElement('a');
    link.href = new URL(page.url, root).href;
    link.textContent = page.title;
    const text = document.createElement('p');
    text.textContent = excerpt(page, words[0]);
    item.append(link, text);
    return item;
  }));
  if (words.length && !found.children.length) {
    const item = document.createElement('li');
    item.textContent = 'No document contains all of these words.';
    found.append(item);
  }
  found.hidden = !words.length;
}

field.addEventListener('focus', load);
field.addEventListener('input', () => { load(); show(); });
field.form.addEventListener('submit', event => {
  event.preventDefault();
  found.querySelector('a')?.click();
});
document.addEventListener('keydown', event => {
  if (event.key === '/' && document.activeElement !== field) {
    event.preventDefault();
    field.focus();
  } else if (event.key === 'Escape') {
    field.value = '';
    show();
    field.blur();
  }
});
