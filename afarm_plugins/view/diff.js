// The words in which two texts differ, by their longest common subsequence.
const MOST_WORDS = 2500;

function wordsOf(text) {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
}

const LITTLE = 0.25; // of the words of the longer text: with less in common, marks would be noise

// Parts [text, same] of both texts; null if they are too long to compare, or have little in common.
function differences(one, other) {
  const [a, b] = [wordsOf(one), wordsOf(other)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const [m, n] = [a.length - start - end, b.length - start - end];
  if (m > MOST_WORDS || n > MOST_WORDS) return null;
  const longest = new Uint16Array((m + 1) * (n + 1));
  for (let i = m - 1; i >= 0; i -= 1)
    for (let j = n - 1; j >= 0; j -= 1)
      longest[i * (n + 1) + j] = a[start + i] === b[start + j] ? longest[(i + 1) * (n + 1) + j + 1] + 1 : Math.max(longest[(i + 1) * (n + 1) + j], longest[i * (n + 1) + j + 1]);
  const [left, right] = [new Array(a.length).fill(true), new Array(b.length).fill(true)];
  for (let i = 0, j = 0; i < m || j < n;) {
    if (i < m && j < n && a[start + i] === b[start + j]) { i += 1; j += 1; }
    else if (j >= n || (i < m && longest[(i + 1) * (n + 1) + j] >= longest[i * (n + 1) + j + 1])) { left[start + i] = false; i += 1; }
    else { right[start + j] = false; j += 1; }
  }
  const solid = (words, same) => words.filter((word, i) => same[i] && /[\p{L}\p{N}]/u.test(word)).length;
  if (solid(a, left) < LITTLE * Math.max(a.length, b.length) / 2) return null;
  return [joined(a, left), joined(b, right)];
}

// Words of one kind in a row as one part; a space between two words of a kind is of that kind.
function joined(words, same) {
  const parts = [];
  words.forEach((word, i) => {
    const kind = !same[i] || (/^\s+$/.test(word) && same[i - 1] === false && same[i + 1] === false) ? false : true;
    if (parts.length && parts.at(-1)[1] === kind) parts.at(-1)[0] += word;
    else parts.push([word, kind]);
  });
  return parts;
}

const marked = (parts) => parts.map(([text, same]) => (same ? text : h("mark", {}, text)));
